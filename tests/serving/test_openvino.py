"""Raw strings in OpenVINO: the ids of `BertTokenizer`, and the answers of a SavedModel."""

import functools
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from small_answerers import LABELS, PIECES, TEXTS, answerer_of, int8_answerer
from tiny import tiny_config

from bert_tf import (
    BertTagger,
    BertTokenizer,
    Predictor,
    evaluate,
    export_model,
    predict,
    save_model,
)
from bert_tf.errors import InputError
from bert_tf.serving.openvino_text import TextGraph
from bert_tf.text.opening import open_answerer

openvino = pytest.importorskip("openvino")
pytest.importorskip("openvino_tokenizers", reason="the extra openvino has this package, too")

GOLDEN = Path(__file__).parents[1] / "golden" / "tokenizer"
SETTINGS = {
    "uncased": {},
    "cased": {"do_lower_case": False},
    "with accents": {"strip_accents": False},
    "special tokens": {"special_tokens_in_text": True},
    "Chinese words": {"tokenize_chinese_chars": False},
}


@functools.cache
def tokenizers(name):
    """`BertTokenizer` and its function in OpenVINO, both from bytes to lists of ids."""
    tokenizer = BertTokenizer(GOLDEN / "vocab.txt", **SETTINGS[name])
    graph = TextGraph(tokenizer)
    texts = graph.op.parameter([-1], openvino.Type.string)
    pieces = graph.pieces(graph.op.string_tensor_unpack(texts).outputs())
    compiled = openvino.Core().compile_model(openvino.Model([*pieces], [texts], "text"), "CPU")

    def in_openvino(texts):
        starts, ends, ids = compiled([np.array(texts, "S")]).values()
        return [ids[a:b].tolist() for a, b in zip(starts, ends, strict=True)]

    return lambda texts: tokenizer.tokenize(texts).to_list(), in_openvino


def check(texts, name):
    ours, theirs = tokenizers(name)
    expected, found = ours(texts), theirs(texts)
    assert len(found) == len(expected)
    differing = [x for x in zip(texts, expected, found, strict=True) if x[1] != x[2]]
    assert differing == []


@pytest.mark.parametrize("name", SETTINGS)
def test_golden_lines_have_our_ids(name):
    with gzip.open(GOLDEN / "original.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line)["text"].encode() for line in file]
    check(texts, name)


HARD = [
    *(b"", b"\0", b"a\0b", b"\xff", b"a\xff b", b"ab\xff,c", b"\xed\xa0\x80x", b"\xc0\x80", b"  "),
    *("a" * 200, "a" * 201, "a" * 99_999, "가" * 67, "가" * 200, "가" * 201, "ก" * 200 + "x"),
    *("[MASK]", "[MA\0SK]", "x[MASK]y [mask]", "ΑΣ[MASK]Σ ΑΣ\1Α ΑΣ\1", "ΑΣ.Α ΑΣ. Σ", "ΑΣ\ufffdΑ"),
    *("## # ##a", "\ufffd a\ufffdb", "a\U0010fffdb", "\U0010fffc [CLS]", "a\u2028b\r\nc", "\ue000"),
]


@pytest.mark.parametrize("name", SETTINGS)
def test_hard_lines_have_our_ids(name):
    texts = [text if isinstance(text, bytes) else text.encode() for text in HARD]
    check(texts, name)
    for alone in ([b""], [b"", b""], [b"\xff"], [b"\0", b" "]):  # no word in the whole batch
        check(alone, name)


characters = st.one_of(
    st.sampled_from(
        "aZΣσς'’. \t\u2028İßé\u0301\u0345ªʰ\xad\u200d\ufeff\0\ufffd中豈각ᄀ!$，·\u037e[]#"
    ),
    st.characters(exclude_categories=["Cs"]),
)
# Bytes that are no UTF-8, with text around them: those that a removed control parts may join to a
# character in TensorFlow.
malformed = st.sampled_from([b"\xff", b"\xe4\xb8", b"\xed\xa0\x80", b"\xc0\x80", b"\xf8", b"\xcc"])
parts = st.text(characters, max_size=12).map(str.encode) | malformed.map(lambda x: b"a" + x + b"b")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(parts, max_size=4).map(b"".join), min_size=1, max_size=8))
def test_random_texts_have_our_ids(texts):
    for name in SETTINGS:
        check(texts, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_every_code_point_has_our_ids(name):
    """Of all planes but those for private use, in a word and alone, unassigned ones included."""
    points = [chr(c) for c in range(0xF0000) if not 0xD800 <= c < 0xE000]
    check([f"a{c}b {c}".encode() for c in points], name)


KINDS = ("pairs", "classification", "regression", "multi_label", "choice", "embedding", "vectors")


@pytest.mark.parametrize("name", KINDS)
def test_answers_are_those_of_a_savedmodel(tmp_path, name):
    answerer = answerer_of(name)
    path = answerer.export_portable(tmp_path / name, "openvino")
    function = Predictor(path).signature()
    inputs = {"text": TEXTS, "text_pair": TEXTS[::-1], "context": TEXTS}
    inputs["choices"] = [[text, "", "ships at sea " * 9] for text in TEXTS]
    for rows in (len(TEXTS), 1, 0):
        strings = {
            name: tf.constant(
                inputs[name][:rows], tf.string, [rows, *([3] * (spec.shape.rank - 1))]
            )
            for name, spec in function.specs.items()
        }
        found = function(**strings)
        expected = {n: np.asarray(x) for n, x in answerer.function()(**strings).items()}
        assert found.keys() == expected.keys()
        for output, values in expected.items():
            assert found[output].dtype == values.dtype and len(found[output]) == rows
            if not rows:
                continue
            if values.dtype == object:
                assert found[output].tolist() == values.tolist()
                continue
            # Two layers of sums of at most 64 products each, rounded in another order.
            np.testing.assert_allclose(found[output], values, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def review(made_once):
    """Folder of a classifier in OpenVINO, its model directory and labelled texts."""

    def make(folder: Path) -> None:
        answerer = answerer_of("classification")
        answerer.save(folder / "preset")
        answerer.export_portable(folder / "review" / "1", "openvino")
        lines = [f"{text}\t{LABELS['classification'][i % 2]}" for i, text in enumerate(TEXTS * 8)]
        (folder / "data.tsv").write_text("\n".join(["text\tlabel", *lines, ""]), encoding="utf-8")

    return made_once("openvino_review", make)


def test_commands_answer_and_score_as_the_model_directory(review):
    path = review / "review" / "1" / "model.xml"
    ours, theirs = (predict(model=str(m), text=TEXTS) for m in (review / "preset", path))
    for expected, found in zip(ours, theirs, strict=True):
        assert found["label"] == expected["label"] and found["truncated"] == expected["truncated"]
        assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-5)
    data = {"data": str(review / "data.tsv")}
    ours, theirs = (evaluate(model=str(m), **data) for m in (review / "preset", path))
    assert theirs.scores["accuracy"] == ours.scores["accuracy"]
    with pytest.raises(InputError, match="max_length is fixed in an export"):
        evaluate(model=str(path), max_length=8, **data)


def test_the_first_answer_frees_the_memory_of_the_file(review, monkeypatch):
    """By then OpenVINO has arranged the weights in memory of its own."""
    freed = []
    monkeypatch.setattr("bert_tf.serving.openvino_model.forget_pages", freed.append)
    path = review / "review" / "1" / "model.xml"
    function = Predictor(path).signature()
    assert not freed
    answers = [function(text=tf.constant(TEXTS)) for _ in range(2)]
    assert freed == [path.with_name("model.bin")]
    for name, values in answers[0].items():
        assert answers[1][name].tolist() == values.tolist()


def test_a_batch_that_would_be_wide_is_answered_in_parts(review, monkeypatch):
    """OpenVINO takes strings as an array as wide as the longest one."""
    function = Predictor(review / "review" / "1" / "model.xml").signature()
    texts = {"text": tf.constant([*TEXTS, "ships " * 99])}
    whole = function(**texts)
    monkeypatch.setattr("bert_tf.serving.openvino_model._MOST_BYTES", 600)
    shapes = []
    concatenate = np.concatenate
    monkeypatch.setattr(np, "concatenate", lambda x: shapes.append(len(x)) or concatenate(x))
    parts = function(**texts)
    assert shapes and parts.keys() == whole.keys()
    for name, values in whole.items():
        assert parts[name].dtype == values.dtype
        if values.dtype == object:
            assert parts[name].tolist() == values.tolist()
        else:
            # Products of other shapes may be summed in another order.
            np.testing.assert_allclose(parts[name], values, rtol=0, atol=1e-5)


def test_sentence_encoders_compare_pairs(tmp_path):
    answerer = answerer_of("embedding")
    opened = open_answerer(answerer.export_portable(tmp_path / "made", "openvino"))
    pairs = {"text": tf.constant(TEXTS), "text_pair": tf.constant(TEXTS[::-1])}
    found, expected = (x.function("compare")(**pairs) for x in (opened, answerer))
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_allclose(values, expected[name], rtol=0, atol=1e-5)


def test_a_card_asks_the_model_with_openvino_alone(review, monkeypatch, capsys):
    folder = review / "review" / "1"
    names = {"model.xml", "model.bin", "model.md", "vocab.txt", "tokenizer_config.json"}
    assert {file.name for file in folder.iterdir()} == {*names, "task.json"}
    card = (folder / "model.md").read_text(encoding="utf-8")
    assert "takes raw strings" in card and "`label`" in card
    code = re.search(r"## Ask it in Python\n\n(.*?)\n\n`", card, re.S)[1]
    monkeypatch.chdir(folder)
    exec(compile(textwrap.dedent(code), "model.md", "exec"), {})
    assert re.search(r"'label': array\(\['(bad|good)'\]", capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="the page's program needs g++")
def test_the_page_asks_the_model_in_cpp(review, tmp_path, monkeypatch):
    page = (Path(__file__).parents[2] / "docs/other-runtimes.md").read_text(encoding="utf-8")
    program, commands = re.search(r"```cpp\n(.*?)```\n```bash\n(.*?)```", page, re.S).groups()
    monkeypatch.chdir(tmp_path)
    Path("ask.cpp").write_text(program)
    Path("exports").mkdir()
    Path("exports/reviews").symlink_to(review / "review")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-ec", commands], capture_output=True, text=True, check=True)
    answer = Predictor("exports/reviews/1/model.xml").signature()(text=tf.constant(["a good film"]))
    label, probability = done.stdout.split()
    assert label.encode() == answer["label"][0]
    assert float(probability) == pytest.approx(answer["probability"][0], abs=1e-5)


def test_int8_is_computed_in_int8_and_near(tmp_path):
    int8 = int8_answerer()
    assert int8.plan.ranges
    path = int8.export_portable(tmp_path / "made", "openvino")
    predictor = Predictor(path)
    assert "computed in int8" in path.with_suffix(".md").read_text()
    ours, theirs = (x(text=tf.constant(TEXTS)) for x in (int8.function(), predictor.signature()))
    np.testing.assert_array_equal(theirs["label"], ours["label"])
    # Both round by the same ranges: a value at the edge of a step may fall to either side, and
    # moves a product by one step of 127.
    np.testing.assert_allclose(theirs["probability"], ours["probability"], rtol=0, atol=1 / 127)


def test_what_has_places_in_the_text_takes_token_ids(tmp_path):
    config = tiny_config(len(PIECES))
    tagger = BertTagger(config, labels=["O", "B-X"], seed=0)
    save_model(tagger, tmp_path / "preset", BertTokenizer(PIECES))
    path = BertTagger.from_preset(tmp_path / "preset").export(tmp_path / "made", format="openvino")
    with pytest.raises(
        InputError, match=r"model\.xml takes token ids, not raw strings: .*other-runtimes.md lists$"
    ):
        Predictor(path)
    with pytest.raises(InputError, match="bfloat16 is for models that take raw strings"):
        BertTagger.from_preset(tmp_path / "preset").export(
            tmp_path / "other", format="openvino", bfloat16=True
        )


@pytest.mark.parametrize(
    ("token", "switches", "message"),
    [
        ({"content": "<user>"}, {}, r"has added tokens \(<user>\), which OpenVINO's"),
        (
            {"content": "[MASK]", "single_word": True},
            {"special_tokens_in_text": True},
            "as a whole",
        ),
    ],
)
def test_tokens_that_cannot_be_found_are_refused_by_name(tmp_path, token, switches, message):
    tokenizer = BertTokenizer(PIECES, added_tokens=[token], **switches)
    with pytest.raises(InputError, match=message):
        answerer_of("classification", tokenizer=tokenizer).export_portable(tmp_path, "openvino")
    assert not list(tmp_path.iterdir())


def test_a_damaged_file_names_the_cure(tmp_path):
    (tmp_path / "model.xml").write_text("<net/>")
    with pytest.raises(InputError, match=r"model\.xml cannot be loaded .*keep its \.bin beside it"):
        Predictor(tmp_path / "model.xml")


@pytest.mark.slow
def test_the_command_writes_a_version_for_openvino_model_server(tmp_path, monkeypatch, review):
    monkeypatch.chdir(tmp_path)
    model = str(review / "preset")
    made = export_model(model=model, name="review", format="openvino", precision="bfloat16")
    assert made.path == Path("exports/review/1/model.xml")
    assert 'INFERENCE_PRECISION_HINT": "bf16' in made.path.with_suffix(".md").read_text()
    int8 = {"format": "openvino", "precision": "int8", "calibration": str(review / "data.tsv")}
    made = export_model(model=model, name="small", **int8)
    assert any(remark.startswith("int8: accuracy") for remark in made.remarks)
    card = made.path.with_suffix(".md").read_text()
    assert re.search(r"\d of \d products of the encoder, ranges from", card)
    assert Predictor(made.path).signature()(text=tf.constant(TEXTS))["label"].shape == (len(TEXTS),)
    worse = SimpleNamespace(points=0.6)
    monkeypatch.setattr("bert_tf.commands.export_precisions.compare", lambda *_: worse)
    with pytest.raises(InputError, match=r"int8 loses 0\.60 points .* more than max_loss 0\.5"):
        export_model(model=model, name="other", **int8)
    assert not (tmp_path / "exports" / "other").exists()
