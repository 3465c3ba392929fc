"""docs/from-*.md: the new halves run, and the table knows every symbol of the old halves."""

import re
import shlex
import shutil
import tarfile
from pathlib import Path

import pytest

from bert_tf import BertConfig, BertTokenizer
from bert_tf.checkpoints.model_directory import save_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.cli import main
from bert_tf.migration.scan import scan
from bert_tf.models.language_model import BertPreTrainer

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.name for path in (ROOT / "docs").glob("from-*.md"))
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", *"bcdefghijklm"]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)


def old_files(page: str, folder: Path) -> None:
    """What the page's old code left: a model in its format, with the same weights."""
    config = BertConfig(
        vocab_size=len(PIECES), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=12, max_position_embeddings=16,
    )  # fmt: skip
    save_model(BertPreTrainer(config, seed=1), folder / "made", BertTokenizer(PIECES))
    (folder / "old").mkdir()
    if page == "from-tfbert.md":
        shutil.copytree(folder / "made", folder / "models" / "base")
    elif page == "from-tf-hub.md":
        with tarfile.open(ROOT / "tests" / "golden" / "tfhub.tar.xz") as archive:
            archive.extractall(folder / "old", filter="data")
    else:
        to, place = {
            "from-kerashub.md": ("keras_hub", "old/preset"),
            "from-model-garden.md": ("model_garden", "old/garden"),
            "from-the-original.md": ("tf1", "old"),
        }[page]
        convert(folder / "made", folder / "converted", to)
        shutil.copytree(folder / "converted", folder / place, dirs_exist_ok=True)
        if page == "from-the-original.md":
            (folder / "train.tsv").write_text(
                "text\tlabel\n" + "a good film\tgood\na bad film\tbad\n" * 8
            )


def blocks(page: str) -> list[tuple[str, str]]:
    """Languages and code of a page."""
    return BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_new_halves_run(page, tmp_path, monkeypatch, capsys):
    """What exports a model is the same on several pages: the first of them runs it."""
    monkeypatch.chdir(tmp_path)
    old_files(page, tmp_path)
    before = {code for other in PAGES[: PAGES.index(page)] for _, code in blocks(other)}
    ran = 0
    for language, code in blocks(page):
        if language == "python":
            ran += 1
            if ".export(" not in code or code not in before:
                exec(compile(code, page, "exec"), {})
        elif language == "sh":
            for line in code.strip().splitlines():
                assert main(shlex.split(line)[1:]) == 0, line
                ran += 1
    assert ran >= 3
    exported = tmp_path / "saved_models" / "review" / "1" / "saved_model.pb"
    assert exported.exists() or (tmp_path / "models" / "review" / "model.safetensors").exists()


@pytest.mark.parametrize("page", PAGES)
def test_the_old_halves_are_known(page, tmp_path):
    for number, (language, code) in enumerate(blocks(page)):
        if language in ("py", "shell"):
            suffix = {"py": "py", "shell": "sh"}[language]
            (tmp_path / f"{number}.{suffix}").write_text(code)
    report = scan(tmp_path)
    assert not report.unread
    assert len(report.findings) >= 4
    assert [each.name for each in report.findings if each.row is None] == []


def test_every_origin_has_a_page():
    text = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"\((from-[\w-]+\.md)\)", text))) == PAGES
    assert len(PAGES) == 5
