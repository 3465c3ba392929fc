"""Windows over contexts, against a transcription of the loops of run_squad.py."""

import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.errors import InputError
from bert_tf.tokenization import SPECIAL_TOKENS
from bert_tf.tokenization import windows as windows_module
from bert_tf.tokenization.windows import QuestionPacker

WORDS = ["sea", "ship", "wave", "farm", "cow", "barn"]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer([*SPECIAL_TOKENS, *WORDS[1:], *"aes", "##e", "##a"])


def original_windows(pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    """(start, length) of each: `convert_examples_to_features`."""
    spans, start = [], 0
    while start < pieces:
        length = min(pieces - start, room)
        spans.append((start, length))
        if start + length == pieces:
            break
        start += min(length, stride)
    return spans or [(0, 0)]


def is_max_context(spans, index: int, position: int) -> bool:
    """`_check_is_max_context`."""
    best_score, best = None, None
    for number, (start, length) in enumerate(spans):
        end = start + length - 1
        if not start <= position <= end:
            continue
        score = min(position - start, end - position) + 0.01 * length
        if best_score is None or score > best_score:
            best_score, best = score, number
    return index == best


@pytest.mark.parametrize(("max_length", "stride"), [(16, 4), (11, 1), (5, 2)])
def test_windows_are_the_originals(tokenizer, max_length, stride):
    draw = random.Random(max_length)
    contexts = [" ".join(draw.choices(WORDS, k=k)) for k in [0, 1, *range(3, 60, 4)]]
    questions = [" ".join(draw.choices(WORDS, k=k % 9)) for k in range(len(contexts))]
    pack = QuestionPacker(tokenizer, max_length, stride, max_question=6)
    found = pack(tf.constant(questions), tf.constant(contexts))
    row = 0
    for number, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        cut = min(6, (max_length - 3) // 2)
        asked = tokenizer.tokenize(question).numpy().tolist()[:cut]
        ids, *offsets = (x.numpy().tolist() for x in tokenizer.tokenize_with_offsets(context))
        spans = original_windows(len(ids), max_length - 3 - len(asked), stride)
        for index, (start, length) in enumerate(spans):
            cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
            tokens = [cls, *asked, sep, *ids[start : start + length], sep]
            padding = [0] * (found.inputs["token_ids"].shape[1] - len(tokens))
            assert found.inputs["token_ids"][row].numpy().tolist() == tokens + padding
            segments = [0] * (len(asked) + 2) + [1] * (length + 1)
            assert found.inputs["segment_ids"][row].numpy().tolist() == segments + padding
            assert found.question[row] == number and found.number[row] == index
            before, after = len(asked) + 2, len(padding) + 1
            for edges, ours in zip(offsets, (found.starts, found.ends), strict=True):
                expected = [-1] * before + edges[start : start + length] + [-1] * after
                assert ours[row].numpy().tolist() == expected
            most = [is_max_context(spans, index, start + i) for i in range(length)]
            expected = [False] * before + most + [False] * after
            assert found.has_most_context[row].numpy().tolist() == expected
            row += 1
    assert row == len(found.question)


def test_one_window_of_each_question(tokenizer):
    pack = QuestionPacker(tokenizer, 16, 4)
    questions, contexts = tf.constant(["sea"] * 3), tf.constant([" ".join(WORDS * 5)] * 3)
    windows = pack(questions, contexts)
    chosen = pack(questions, contexts, number=tf.constant([2, 0, 1]))
    rows = [2, 0 + len(windows.question) // 3, 1 + 2 * (len(windows.question) // 3)]
    for name, values in chosen.inputs.items():
        np.testing.assert_array_equal(values, tf.gather(windows.inputs[name], rows))
    np.testing.assert_array_equal(chosen.starts, tf.gather(windows.starts, rows))
    with pytest.raises(InputError, match="max_length is 4; windows need at least 5"):
        QuestionPacker(tokenizer, 4)


def test_rows_are_computed_in_parts_of_any_number(monkeypatch):
    monkeypatch.setattr(windows_module, "_MOST_TOKENS", 6)
    parts = []

    @tf.function
    def doubled(x):
        def function(part):
            tf.py_function(lambda x: parts.append(len(x)), [part["x"]], [])
            return 2 * part["x"], tf.strings.as_string(part["x"][:, 0])

        return windows_module.map_rows(function, {"x": x})

    for rows, wanted in ((0, [1]), (1, [1]), (3, [3]), (7, [3, 3, 1])):
        x = tf.reshape(tf.range(2 * rows), [rows, 2])
        parts.clear()
        twice, first = doubled(x)
        np.testing.assert_array_equal(twice, 2 * x)
        assert [text.decode() for text in first.numpy()] == [str(2 * n) for n in range(rows)]
        assert parts == wanted
