import inspect

import pytest
from cases import for_each, refused
from tiny import tiny_config

import bert_tf
from bert_tf.cli import COMMANDS, command_named
from bert_tf.errors import InputError

NAMES = {"export": "export_model", "shards": "make_shards", "tasks": "list_tasks"}
NAMES["vocab"] = "learn_vocabulary"


@for_each("command", *COMMANDS)
def test_signatures_and_docstrings_hold_every_option(command):
    function = getattr(bert_tf, NAMES.get(command, command))
    parameters = inspect.signature(function).parameters
    assert set(parameters) == set(command_named(command).options.__dataclass_fields__)
    assert "verbose" in parameters
    assert all(each.kind is each.KEYWORD_ONLY for each in parameters.values())
    for name in parameters:
        assert f"\n    {name}: " in function.__doc__
    assert not any(f"--{name}" in function.__doc__.replace('"--runner', "") for name in parameters)
    for part in ("Args:", "Returns:", "Raises:", "InputError"):
        assert part in function.__doc__


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "model"
    tokenizer = bert_tf.BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    bert_tf.save_model(bert_tf.BertEncoder(tiny_config(7)), folder, tokenizer)
    return folder


@for_each(
    "call error message",
    ({"bath_size": 8}, TypeError, "there is no option bath_size: did you mean batch_size"),
    ({"batch_size": "8"}, InputError, "batch_size is '8': give a whole number"),
    ({"data": "a"}, InputError, "give exactly one of data and train"),
    ({"train": "none.tsv"}, InputError, "train none.tsv: no such file or folder"),
    ({"train": ["a", "b"]}, InputError, "train: the data has no labels"),
    ({"train": (["a"], ["x", "y"])}, InputError, "train: 2 labels for 1 examples"),
    ({"output": "."}, InputError, "output . "),
)
def test_mistakes_are_one_line(call, error, message, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {"model": model, "train": (["a", "b"], ["x", "y"])}
    if "output" in call:
        call, message = {"output": values["model"]}, "is the input"
    with pytest.raises(error, match=message) as raised:
        bert_tf.finetune(**{**values, "output": tmp_path / "run", **call})
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "run").exists()


def test_what_is_missing_is_named():
    with pytest.raises(TypeError, match=r"finetune\(\) needs output and model"):
        bert_tf.finetune(train="a.tsv")
    with pytest.raises(TypeError, match=r"predict\(\) takes its arguments by name"):
        bert_tf.predict("models/base", ["a"])
    refused("give exactly one of corpus and documents", bert_tf.learn_vocabulary, output="vocab")
