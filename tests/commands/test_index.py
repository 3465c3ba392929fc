"""bert-tf index and ask: the nearest texts by vectors, and mistakes in a line."""

import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
from tiny import tiny_config

from bert_tf import BertEncoder, BertSentenceEncoder, BertTokenizer, save_model
from bert_tf.commands import search_index
from bert_tf.commands.search_index import (
    SearchIndex,
    divided,
    passages,
    read_located_texts,
    write_index,
)
from bert_tf.errors import InputError
from bert_tf.models.answerer import Answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]
CONFIG = tiny_config(len(PIECES), intermediate_size=8, initializer_range=0.5)


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    (folder / "a.txt").write_text("sea ship\nship\n\n\ncow barn\n")
    (folder / "more" / "b.jsonl").write_text('{"text": "barn"}\n{"text": " "}\n')
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder


def test_texts_of_a_folder_and_their_places(texts):
    (texts / "a.csv").write_text("year,count\n2020,3\n")
    remarks = []
    assert list(read_located_texts(texts, remark=remarks.append)) == [
        ("sea ship ship", f"{texts}/a.txt, line 1"),
        ("cow barn", f"{texts}/a.txt, line 5"),
        ("barn", f"{texts}/more/b.jsonl, line 1"),
    ]
    assert f"left out: {texts}/a.csv: no column 'text'" in remarks[0]
    with pytest.raises(InputError, match=r"a\.csv: no column 'text'"):
        list(read_located_texts(texts / "a.csv"))
    (texts / "c.jsonl").write_text('{"text": "barn"}\n{"label": " "}\n')
    with pytest.raises(InputError, match=r"c\.jsonl, line 2: no column 'text'"):
        list(read_located_texts(texts))


def test_tables_without_a_header_keep_their_first_row(tmp_path):
    (tmp_path / "a.tsv").write_text("7\tsea\n8\tcow\n")
    remarks = []
    options = {"text_column": "1", "remark": remarks.append}
    located = read_located_texts(tmp_path, header=False, **options)
    assert [text for text, _ in located] == ["sea", "cow"] and not remarks
    assert [text for text, _ in read_located_texts(tmp_path, **options)] == ["cow"]
    assert remarks[0].endswith("was read as names of columns; give --no_header if it is an example")


def test_long_texts_are_divided_between_sentences_or_words():
    """Every passage fits, and together they are the text."""
    tokenizer = BertTokenizer([*PIECES, ".", "##s", "牛"])
    texts = [
        "sea ship.  Cow barn. Sea.",
        "sea ship cow barn sea ship. Cow.",
        "cow\n",
        "牛牛牛牛。牛牛",
        "Éa sea. Cow barn ships cow",
        "",
    ]
    spans = list(passages(texts, tokenizer, 4))
    parts = [[t[i:j].strip() for i, j in span] for t, span in zip(texts, spans, strict=True)]
    assert parts == [
        ["sea ship.", "Cow barn.", "Sea."],
        ["sea ship cow barn", "sea ship.", "Cow."],
        ["cow"],
        ["牛牛牛牛", "。牛牛"],  # no sentence ends early enough, and no space
        ["Éa sea.", "Cow barn ships", "cow"],
        [""],
    ]
    draw = random.Random(1)
    some = "ac. !?\u3000\u2028\x1c牛。É한e\u0301\u200b\x00\x85İß「」"
    texts += ["".join(draw.choices(some, k=draw.randrange(99))) for _ in range(60)]
    for text, places in zip(texts, passages(texts, tokenizer, 7), strict=True):
        parts = [text[i:j] for i, j in places]
        assert "".join(parts) == text
        assert len(parts) == 1 or all(map(str.strip, parts))
        assert max(tokenizer.tokenize(parts).row_lengths().numpy()) <= 7


@pytest.mark.parametrize("is_exported", [False, True])
def test_passages_have_their_places_and_leave_room_for_a_prompt(is_exported, tmp_path):
    kind = SimpleNamespace(reads_windows=False, document_prompt="sea ", prompt="")
    tokenizer = BertTokenizer(PIECES)
    task = SimpleNamespace(kind=kind, max_length=5)
    tokenizer.save(tmp_path / "assets.extra")
    exported = SimpleNamespace(directory=tmp_path)
    model = Answerer(task, exported, None if is_exported else tokenizer)
    located = [("ship cow barn", "a.txt, line 7"), ("cow", "a.txt, line 9")]
    assert divided(located, model, None) == [
        ("ship cow", "a.txt, line 7, characters 1 to 9"),
        ("barn", "a.txt, line 7, characters 10 to 13"),
        ("cow", "a.txt, line 9"),
    ]
    with pytest.raises(InputError, match="--max_length 6 is above the 5 tokens"):
        divided(located, model, 6)
    kind.reads_windows = True
    assert divided(located, model, None) == located


@pytest.mark.slow
def test_a_question_finds_its_own_text(texts, tmp_path, call):
    def saved(name, model):
        save_model(model, tmp_path / name, BertTokenizer(PIECES))
        return tmp_path / name

    model, index = saved("model", BertSentenceEncoder(CONFIG, seed=1)), tmp_path / "index"
    _, printed = call("index", model=model, input=texts, output=index)
    assert "3 texts, vectors of 8 numbers" in printed
    vectors = np.load(index / "vectors.npy")
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    out, _ = call("ask --count 2", index=index, text=["cow barn", "barn"])
    first, second = map(json.loads, out.splitlines())
    assert first["question"] == "cow barn" and len(first["texts"]) == 2
    assert first["texts"][0]["text"] == "cow barn"
    assert first["texts"][0]["source"].endswith("a.txt, line 5")
    assert first["texts"][0]["score"] == pytest.approx(1, abs=1e-5)
    assert second["texts"][0]["text"] == "barn"

    other = saved("other", BertSentenceEncoder(CONFIG, seed=2))
    message = call.refused("ask --text barn", index=index, model=other)
    assert "other is not the model that made" in message
    plain = saved("plain", BertEncoder(CONFIG, seed=1))
    message = call.refused("index", model=plain, input=texts, output=f"{index}2")
    assert "was not trained for" in message
    assert "is no index" in call.refused("ask --text a", index=texts)
    assert "there is no question: give --text" in call.refused("ask", index=index)

    # What is deleted is in no later index.
    make = {"model": model, "input": texts, "output": index}
    (texts / "a.txt").unlink()
    call("index", **make)
    answer = json.loads(call("ask", index=index, text="cow barn")[0])
    assert [nearest["text"] for nearest in answer["texts"]] == ["barn"]
    (texts / "more" / "b.jsonl").unlink()
    assert "has no text" in call.refused("index", **make)
    (texts / "c.tsv").write_text("7\tsea\n")
    call("index --no_header --text_column 1 --format tsv", **make)
    answer = json.loads(call("ask", index=index, text="cow barn")[0])
    assert [nearest["text"] for nearest in answer["texts"]] == ["sea"]


def test_of_10000_texts_the_nearest_are_those_that_sorting_finds(tmp_path, monkeypatch):
    """Many of them have the same score."""
    monkeypatch.setattr(search_index, "_AT_ONCE", 7000)  # two parts
    draw = np.random.default_rng(0)
    vectors = draw.integers(-2, 3, [10_000, 4]).astype(np.float32)
    write_index(tmp_path, "model", [(f"text {i}", "a.txt") for i in range(10_000)], vectors)
    index = SearchIndex.read(tmp_path)
    for question in np.float32([[1, 2, 0, -1], [0.3, -0.7, 0.2, 0.9], [0, 0, 0, 0]]):
        order = np.argsort(-(vectors @ question), kind="stable")
        for count in (1, 10, 9_999, 20_000):
            nearest = [int(x.text.split()[1]) for x in index.nearest(question, count)]
            assert nearest == order[:count].tolist()


def test_what_is_no_index_or_has_other_vectors_is_refused(tmp_path):
    vectors = np.eye(4, dtype=np.float32)[[0, 1, 1, 2]]
    texts = [(f"text {i}", "a.txt") for i in range(3)]
    write_index(tmp_path, "model", [*texts, ("one\u2028text\x85", "a.txt")], vectors)
    index, question = SearchIndex.read(tmp_path), np.array([0.5, 0.7, 0.1, 0.0], np.float32)
    with pytest.raises(InputError, match="have 3 numbers, those of the index 4"):
        index.nearest(question[:3], 1)
    assert index.nearest(vectors[3], 1)[0].text == "one\u2028text\x85"
    (tmp_path / "texts.jsonl").write_text("{}\n" * 4)
    with pytest.raises(InputError, match="is no index"):
        SearchIndex.read(tmp_path).nearest(question, 1)
    (tmp_path / "texts.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="its files are of different indexes"):
        SearchIndex.read(tmp_path)
