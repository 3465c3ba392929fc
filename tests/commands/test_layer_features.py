import json
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, Packer, save_model
from bert_tf.commands.layer_features import FeatureExtractor, feature_file, how_to_read

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
WORDS = ["sea", "ship", "##s", "sail", "##ed", "##ing", "café", "世", ","]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = tiny_config(len(PIECES), initializer_range=0.3)
LONG = "ships, sailing 世 café " * 8
TEXTS = ["ships sailed", "", LONG, "café, sailing"]
# A block, whose sums have up to 16 terms; of 8 numbers with mean 0 and variance 1 none is above
# the root of 7.
CLOSE = {"rtol": 0, "atol": rounding(24, 16, size=7**0.5)}


@pytest.fixture(scope="module")
def encoder():
    return BertEncoder(CONFIG, seed=1)


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(PIECES, strip_accents=False)


@pytest.fixture(scope="module")
def model(encoder, tokenizer, made_once):
    return made_once("features_model", lambda path: save_model(encoder, path, tokenizer))


def records(encoder, tokenizer, texts, **options):
    return list(FeatureExtractor(encoder, tokenizer, **options)({"text": texts}, batch_size=3))


def last_states(encoder, tokenizer, text, max_length=16):
    return encoder(Packer(tokenizer, max_length)(tokenizer.tokenize([text])))["sequence_output"][0]


def test_tokens_are_those_of_the_encoder(encoder, tokenizer):
    extracted = records(encoder, tokenizer, TEXTS, layers=["last"])
    assert [record["text"] for record in extracted] == TEXTS
    assert extracted[0]["tokens"] == ["[CLS]", "ship", "##s", "sail", "##ed", "[SEP]"]
    assert [record["cut"] for record in extracted] == [False, False, True, False]
    for text, record in zip(TEXTS, extracted, strict=True):
        expected = last_states(encoder, tokenizer, text)
        np.testing.assert_allclose(record["vectors"], expected, **CLOSE)


def test_every_word_comes_back_once_from_the_window_with_most_context(encoder, tokenizer):
    extracted = records(encoder, tokenizer, TEXTS, per="word")
    for text, record in zip(TEXTS, extracted, strict=True):
        assert record["words"] == re.findall(r"\w+|,", text)
        spans = zip(record["starts"], record["ends"], strict=True)
        assert [text[start:end] for start, end in spans] == record["words"]
        assert record["vectors"].shape == (len(record["words"]), 8)
        assert not record["cut"]
    np.testing.assert_allclose(  # [CLS] ship ##s sail ##ed [SEP]
        extracted[0]["vectors"], last_states(encoder, tokenizer, TEXTS[0]).numpy()[[1, 3]], **CLOSE
    )
    # 14 pieces a window, of which the next window has 7: pieces 0 to 9 are from the first window.
    pieces = tokenizer.tokenize([LONG])[0].numpy()
    rows = np.array([[2, *pieces[start : start + 14], 3] for start in (0, 7)])
    inputs = {"token_ids": rows, "segment_ids": 0 * rows, "padding_mask": 0 * rows + 1}
    states = encoder(inputs)["sequence_output"].numpy()
    vectors = extracted[2]["vectors"]  # a word each of ship ##s | , | sail ##ing | 世 | café
    np.testing.assert_allclose(vectors[6], states[0, 1 + 9], **CLOSE)  # the second comma
    np.testing.assert_allclose(vectors[8], states[1, 1 + 12 - 7], **CLOSE)  # the second 世


def test_one_vector_of_a_word_and_of_a_text(encoder, tokenizer):
    (record,) = records(encoder, tokenizer, [TEXTS[0]], per="word", pooling="mean")
    states = last_states(encoder, tokenizer, TEXTS[0]).numpy()
    expected = [states[1:3].mean(0), states[3:5].mean(0)]
    np.testing.assert_allclose(record["vectors"], expected, **CLOSE)
    inputs = Packer(tokenizer, 16)(tokenizer.tokenize([TEXTS[0]]))
    states = last_states(encoder, tokenizer, TEXTS[0]).numpy()
    expected = {"mean": states.mean(0), "pooler": encoder(inputs)["pooled_output"][0]}
    for pooling, vector in expected.items():
        extracted = records(encoder, tokenizer, TEXTS, per="text", pooling=pooling)
        np.testing.assert_allclose(extracted[0]["vector"], vector, **CLOSE)
        assert [record["cut"] for record in extracted] == [False, False, True, False]


def test_the_files_as_the_page_reads_them(encoder, tokenizer, tmp_path):
    expected = records(encoder, tokenizer, TEXTS, per="word", layers=["-2", "last"])
    for name in ("tokens.jsonl", "words.tfrecord", "words.npy"):
        with feature_file(tmp_path / name, 16) as write:
            for record in expected:
                write({name: value for name, value in record.items() if name != "cut"})
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    values = {"W": 16}
    exec(block.replace('Dataset("', f'Dataset("{tmp_path}/'), values)
    tfrecord = list(values["texts"])
    files = [tmp_path / name for name in ("tokens.jsonl", "words.npy", "words.npy.jsonl")]
    json_lines, rows, others = (eval(how_to_read(x), {"json": json, "np": np}) for x in files)
    npy = np.split(rows, np.cumsum([len(other["words"]) for other in others])[:-1])
    for number, record in enumerate(expected):
        vectors = record["vectors"].astype(np.float32)
        np.testing.assert_array_equal(npy[number], vectors)
        np.testing.assert_array_equal(tfrecord[number]["vectors"], vectors)
        assert [w.decode() for w in tfrecord[number]["words"].numpy()] == record["words"]
        assert json_lines[number]["words"] == record["words"]
        assert json_lines[number]["starts"] == record["starts"].tolist()
        written = np.reshape(json_lines[number]["vectors"], (-1, 16))
        np.testing.assert_allclose(written, vectors, rtol=0, atol=0.51e-6)  # six decimals


def test_the_command_writes_vectors_of_pairs(encoder, tokenizer, model, tmp_path, call):
    data, output = tmp_path / "pairs.txt", tmp_path / "pairs.npy"
    data.write_text("sea,ship\nsailing,ships\n")
    line = "features --text-column 0 --pair-column 1 --no-header --format csv"
    line += " --layers -1 -2 --max-length 6"
    _, said = call(line, model=model, data=data, output=output)
    ids = tokenizer.tokenize(["sea", "sailing"]), tokenizer.tokenize(["ship", "ships"])
    outputs = encoder(inputs := Packer(tokenizer, 6)(*ids))
    expected = np.concatenate([outputs["hidden_states"][-1], outputs["hidden_states"][-2]], -1)
    is_token = inputs["padding_mask"].numpy() == 1
    np.testing.assert_allclose(np.load(output), expected[is_token], **CLOSE)
    first, _ = (tmp_path / "pairs.npy.jsonl").read_text().splitlines()
    tokens = ["[CLS]", "sea", "[SEP]", "ship", "[SEP]"]
    assert json.loads(first) == {"text": "sea", "pair": "ship", "tokens": tokens}
    assert "1 of 2 texts were cut to 6 tokens: --max_length 16 keeps more" in said
    assert f"11 vectors of 16 float32, one per token, of 2 texts: {tmp_path}/pairs.npy" in said
    message = call.refused(f"{line} --per word", model=model, data=data, output=output)
    assert "--per word is for single texts" in message


@for_each(
    "arguments message",
    ("--output a.csv", "a.csv: unknown format: name a file .npy, .jsonl, .tfrecord"),
    ("--pooling mean", "--pooling mean is for --per word and text: leave it out"),
    ("--per text --pooling pooler --layers -2", "leave --layers out"),
    ("--max-length 17", "more than the 16 positions"),
    ("--data a.npy.jsonl", "is the input a.npy.jsonl: name a separate output"),
)
def test_what_cannot_be_done(arguments, message, model, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tsv").write_text("text\nsea\n")
    (tmp_path / "a.npy.jsonl").write_text('{"text": "sea"}\n')
    line = f"features --data a.tsv --output a.npy {arguments}"
    assert message in call.refused(line, model=model)
    assert {path.name for path in tmp_path.iterdir()} == {"a.tsv", "a.npy.jsonl"}


@for_each("name", "a.npy", "a.jsonl", "a.tfrecord")
def test_a_file_appears_whole_or_not_at_all(name, tmp_path):
    record = {"text": "sea", "words": ["sea"], "vectors": np.zeros((1, 8), np.float32)}
    with pytest.raises(KeyboardInterrupt), feature_file(tmp_path / name, 8) as write:
        write(record)
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with feature_file(tmp_path / name, 8) as write:
        for _ in range(1000):  # the header of a .npy grows with the number of rows
            write(record)
    if name == "a.npy":
        assert np.load(tmp_path / name).shape == (1000, 8)
    if name == "a.tfrecord":
        assert sum(1 for _ in tf.data.TFRecordDataset(str(tmp_path / name))) == 1000
