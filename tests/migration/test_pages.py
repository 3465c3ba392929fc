import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest
from cases import for_each
from tiny import tiny_config

from bert_tf import BertPreTrainer, BertTokenizer, save_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.cli import main
from bert_tf.migration.scan import scan

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
SECTIONS = {
    part.partition("\n")[0]: part for part in re.split("^## ", PAGE, flags=re.MULTILINE)[1:]
}
ORIGINS = [title for title in SECTIONS if title.startswith("From ")]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", *"bcdefghijklm"]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def old_files(origin: str, folder: Path) -> None:
    """What the section's old code left: a model in its format, with the same weights."""
    config = tiny_config(len(PIECES), intermediate_size=12)
    save_model(BertPreTrainer(config, seed=1), folder / "made", BertTokenizer(PIECES))
    (folder / "old").mkdir()
    if "transformers" in origin:
        shutil.copytree(folder / "made", folder / "models" / "base")
    elif "TF Hub" in origin:
        with tarfile.open(ROOT / "tests" / "golden" / "tfhub.tar.xz") as archive:
            archive.extractall(folder / "old", filter="data")
    elif "Model Garden" in origin:
        golden = ROOT / "tests" / "golden" / "model_garden" / "v2"
        shutil.copytree(golden, folder / "old" / "garden")
        BertTokenizer([*PIECES, *map(str, range(23 - len(PIECES)))]).save(folder / "old" / "garden")
    else:
        to, place = {
            "From KerasHub and KerasNLP": ("keras_hub", "old/preset"),
            "From the original's scripts": ("tf1", "old"),
        }[origin]
        convert(folder / "made", folder / "converted", to)
        shutil.copytree(folder / "converted", folder / place, dirs_exist_ok=True)
        if "original" in origin:
            (folder / "train.tsv").write_text(
                "text\tlabel\n" + "a good film\tgood\na bad film\tbad\n" * 8
            )


def blocks(section: str) -> list[tuple[str, str]]:
    """Languages and code."""
    return BLOCK.findall(SECTIONS[section])


@pytest.mark.slow
@for_each("origin", *ORIGINS)
def test_the_new_code_runs(origin, tmp_path, monkeypatch):
    """What is common to all origins follows; the first of them exports the model."""
    monkeypatch.chdir(tmp_path)
    old_files(origin, tmp_path)
    ran = 0
    for language, code in [*blocks(origin), *blocks("The new code")]:
        if language == "python":
            ran += 1
            if ".export(" not in code or origin == ORIGINS[0]:
                exec(compile(code, origin, "exec"), {})
        elif language == "sh":
            for line in code.strip().splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
                ran += 1
    assert ran >= 2
    assert (tmp_path / "models" / "review" / "model.safetensors").exists()
    exported = tmp_path / "saved_models" / "review" / "1" / "saved_model.pb"
    assert exported.exists() == (origin == ORIGINS[0] or "original" in origin)


@for_each("origin", *ORIGINS)
def test_the_old_code_is_known(origin, tmp_path):
    for number, (language, code) in enumerate(blocks(origin)):
        if language in ("py", "shell"):
            suffix = {"py": "py", "shell": "sh"}[language]
            (tmp_path / f"{number}.{suffix}").write_text(code)
    assert len(ORIGINS) == len(re.findall(r"\(#from-[\w-]+\)", PAGE)) == 5  # each is linked
    report = scan(tmp_path)
    assert not report.unread
    assert len(report.findings) >= 3
    assert [x.name for x in report.findings if x.row is None] == []
