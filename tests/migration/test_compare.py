import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from cases import for_each, refused

from bert_tf import BertTokenizer
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.cli import main
from bert_tf.migration.compare import compare

GOLDEN = Path(__file__).parents[1] / "golden"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopq", "##a"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What transformers saved and computed: see tests/golden/README.md."""
    folder = tmp_path_factory.mktemp("saved")
    with tarfile.open(GOLDEN / "tfbert.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@for_each(
    "name outputs",
    ("TFBertModel", ["last_hidden_state", "pooler_output"]),
    ("TFBertForPreTraining", ["prediction_logits", "seq_relationship_logits"]),
    ("TFBertForMultipleChoice", ["logits"]),
    ("TFBertForQuestionAnswering", ["end_logits", "start_logits"]),
)
def test_equal(saved, name, outputs):
    folder = saved / name
    result = compare(folder / "outputs.npz", folder / "h5")
    assert [output.name for output in result.outputs] == outputs
    assert result.is_equal


@pytest.fixture
def classifier(saved, tmp_path):
    home = saved / "TFBertForSequenceClassification"
    convert(home / "h5", tmp_path / "model")
    BertTokenizer(PIECES).save(tmp_path / "model")
    arrays = dict(np.load(home / "outputs.npz"))
    tokenizer = BertTokenizer(PIECES)
    pieces = [[tokenizer.id_to_token(i) for i in row if i > 4] for row in arrays["input_ids"]]
    arrays["texts"] = np.array([*map(" ".join, pieces)])
    return tmp_path / "model", arrays


def test_the_command(classifier, tmp_path, capsys):
    model, arrays = classifier
    del arrays["texts"]
    np.savez(tmp_path / "old.npz", **arrays)
    command = ["migrate", "--compare", str(tmp_path / "old.npz"), "--model", str(model)]
    assert main(command) == 0
    printed = capsys.readouterr().err
    assert "computes what the old code computed, on 2 row(s)" in printed
    assert re.search(r"logits: largest difference \d\.\de-\d\d of values up to", printed)
    np.savez(tmp_path / "old.npz", **arrays | {"logits": arrays["logits"] + np.float32(0.002)})
    assert main(command) == 2
    assert "come from another GELU" in capsys.readouterr().err
    np.savez(tmp_path / "old.npz", **arrays | {"logits": arrays["logits"] + 1})
    assert main(command) == 2
    assert "convert the weights that the old code used" in capsys.readouterr().err


def test_ids_of_texts(classifier, tmp_path):
    model, _ = classifier
    tokenizer = BertTokenizer(PIECES)
    texts = np.array(["a b c", "d e f g"])
    ids = np.array([[2, 5, 6, 7, 3, 0], [2, 8, 9, 10, 11, 3]], np.int32)
    assert tokenizer.tokenize(texts).to_list() == [[5, 6, 7], [8, 9, 10, 11]]
    arrays = {"texts": texts, "attention_mask": ids > 0, "logits": np.zeros((2, 3), np.float32)}
    np.savez(tmp_path / "old.npz", **arrays, input_ids=ids)
    result = compare(tmp_path / "old.npz", model)
    assert (result.texts, result.other_ids) == (2, [])
    ids[1, 2] = 12
    np.savez(tmp_path / "old.npz", **arrays, input_ids=ids)
    result = compare(tmp_path / "old.npz", model)
    (sentence,) = result.other_ids
    assert sentence == "'d e f g' is '[CLS] d e f g [SEP]' here, '[CLS] d h f g [SEP]' there"
    assert "vocab.txt" in result.cause


def test_ids_of_added_tokens(classifier, tmp_path):
    """In a directory with tokenizer.json in place of vocab.txt; then without the added token."""
    model, _ = classifier
    vocabulary = {piece: i for i, piece in enumerate([*PIECES[:-2], "<x>", PIECES[-1]])}
    values = {
        "model": {"type": "WordPiece", "vocab": vocabulary},
        "normalizer": {"type": "BertNormalizer"},
        "added_tokens": [{"id": vocabulary["<x>"], "content": "<x>", "normalized": False}],
    }
    (model / "tokenizer.json").write_text(json.dumps(values))
    (model / "vocab.txt").unlink()
    ids = np.array([[2, 5, vocabulary["<x>"], 6, 3]], np.int32)
    file = tmp_path / "old.npz"
    outputs = {"logits": np.zeros((1, 3), np.float32)}
    np.savez(file, texts=np.array(["a<x> b"]), input_ids=ids, **outputs)
    result = compare(file, model)
    assert (result.texts, result.other_ids) == (1, [])
    ids[0, 2] = len(PIECES)
    np.savez(file, texts=np.array(["a<x> b"]), input_ids=ids, **outputs)
    refused(r"has the id 23, and .* has embeddings of 23 pieces", compare, file, model)


@for_each(
    "change message",
    ({"input_ids": None}, "holds no ids"),
    ({"logits": None}, "holds no outputs: save some of logits"),
    ({"attention_mask": np.ones((2, 3), int)}, "padding_mask is [2, 3], the ids are [2, 8]"),
    ({"logits": np.zeros((2, 7), np.float32)}, "logits is float32 [2, 7], here it is [2, 3]"),
    ({"start_logits": np.zeros((2, 8), np.float32), "logits": None}, "[2, 8], here it is [2]"),
    ({"nsp_logits": np.zeros((2, 2), np.float32)}, "which a BertClassifier has not"),
    ({"texts": np.array(["one"])}, "save one string for each row"),
)
def test_files_that_cannot_be_used(classifier, tmp_path, change, message):
    model, arrays = classifier
    del arrays["texts"]
    arrays = {name: x for name, x in (arrays | change).items() if x is not None}
    np.savez(tmp_path / "old.npz", **arrays)
    assert message in refused("", compare, tmp_path / "old.npz", model)


def test_a_pickle_is_not_read(classifier, tmp_path):
    model, _ = classifier
    np.savez(tmp_path / "pickle.npz", input_ids=np.array([{"a": 1}], object))
    (tmp_path / "empty.npz").touch()
    for name in ("pickle.npz", "empty.npz"):
        refused(r"no \.npz file of plain arrays", compare, tmp_path / name, model)


@for_each(
    "arguments message",
    ([], "give exactly one of a script or folder to read and --compare FILE"),
    (["script.py", "--compare", "old.npz", "--model", "model"], "give exactly one of a script"),
    (["--compare", "old.npz"], "--compare and --model belong together"),
    (["script.py", "--model", "model"], "--compare and --model belong together"),
)
def test_options(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("script.py", "old.npz", "model/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert main(["migrate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_report(tmp_path, capsys):
    path = tmp_path / "script.py"
    path.write_text("from transformers import TFBertModel, TFT5Model, x" + "\nTFBertModel" * 2)
    assert main(["migrate", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    counts = "1 have an equivalent, 1 have none, 1 are not known (67% known). Nothing was changed."
    assert lines[-1] == "3 symbol(s) in 1 file(s): " + counts
    assert f"{path}:2: TFBertModel (transformers): encoder" in lines
    assert "    also at 3" in lines
    assert any("no equivalent, because bert-tf has BERT's encoder alone" in line for line in lines)
    # The exit code says what was not read.
    path.write_text("import tensorflow_hub as hub\nprint hub.load('bert')\n")
    assert main(["migrate", str(path)]) == 2
    captured = capsys.readouterr()
    assert "1 file(s), of which 1 part(s) were not read" in captured.out
    assert "1 part(s) of" in captured.err and "could not be read" in captured.err
