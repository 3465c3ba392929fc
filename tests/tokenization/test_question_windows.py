"""Windows over contexts, against a transcription of the loops of run_squad.py."""

import random

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.errors import InputError
from bert_tf.tokenization.windows import QuestionPacker

WORDS = ["sea", "ship", "wave", "farm", "cow", "barn"]
TEXTS = [
    "서울은 대한민국의 수도이다.",
    "北京是中华人民共和国的首都。",
    "Η Αθήνα είναι η πρωτεύουσα της ΕΛΛΑΔΑΣ",
    "a 👩‍👩‍👧‍👦 and 😀🇰🇷 b",
    "cafe\u0301 ñandu\u0303 e\u0301\u0323!",
    "\u202fthin\u00a0space\u200b zero\tİstanbul ǅ ﬁ",
    "",
    "  \n ",
]


@pytest.fixture(scope="module")
def tokenizer():
    # Every character of the texts, so that words come apart into pieces.
    characters = sorted({c for text in TEXTS for c in text.lower() if not c.isspace()})
    jamo = [chr(c) for c in range(0x1100, 0x1200)]
    letters = [*characters, *jamo, *"abcdefghijklmnopqrstuvwxyz", "η", "σ", "ς"]
    letters = [letter for letter in dict.fromkeys(letters) if letter.strip()]
    pieces = [*letters, *(f"##{letter}" for letter in letters), *WORDS]
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])


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


@pytest.mark.parametrize(("max_length", "stride"), [(16, 4), (16, 100), (11, 1), (30, 7), (5, 2)])
def test_windows_are_the_originals(tokenizer, max_length, stride):
    draw = random.Random(max_length)
    contexts = [" ".join(draw.choices(WORDS, k=k)) for k in [0, 1, *range(3, 60, 4)]]
    questions = [" ".join(draw.choices(WORDS, k=k % 9)) for k in range(len(contexts))]
    pack = QuestionPacker(tokenizer, max_length, stride, max_question=6)
    windows = pack(tf.constant(questions), tf.constant(contexts))
    row = 0
    for number, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        cut = min(6, (max_length - 3) // 2)
        asked = tokenizer.tokenize(question).numpy().tolist()[:cut]
        ids, starts, _ = (x.numpy().tolist() for x in tokenizer.tokenize_with_offsets(context))
        spans = original_windows(len(ids), max_length - 3 - len(asked), stride)
        for index, (start, length) in enumerate(spans):
            cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
            tokens = [cls, *asked, sep, *ids[start : start + length], sep]
            padding = [0] * (windows.inputs["token_ids"].shape[1] - len(tokens))
            assert windows.inputs["token_ids"][row].numpy().tolist() == tokens + padding
            segments = [0] * (len(asked) + 2) + [1] * (length + 1)
            assert windows.inputs["segment_ids"][row].numpy().tolist() == segments + padding
            assert windows.question[row] == number and windows.number[row] == index
            before, after = len(asked) + 2, len(padding) + 1
            expected = [-1] * before + starts[start : start + length] + [-1] * after
            assert windows.starts[row].numpy().tolist() == expected
            most = [is_max_context(spans, index, start + i) for i in range(length)]
            expected = [False] * before + most + [False] * after
            assert windows.has_most_context[row].numpy().tolist() == expected
            row += 1
    assert row == len(windows.question)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_lie_at_characters_of_the_users_own_text(tokenizer, text):
    pack = QuestionPacker(tokenizer, 12, 3)
    windows = pack(tf.constant(["sea ship"]), tf.constant([text]))
    raw = text.encode()
    found = [
        (start, end)
        for starts, ends in zip(windows.starts.numpy(), windows.ends.numpy(), strict=True)
        for start, end in zip(starts, ends, strict=True)
        if start >= 0
    ]
    for start, end in found:
        assert raw[start:end].decode().strip()
    covered = b"".join(raw[s:e] for s, e in sorted(set(found))).decode()
    for character in text:  # every letter is within a token; whitespace and controls need not
        assert character in covered or character.isspace() or character == "\u200b"


def test_one_window_of_each_question(tokenizer):
    pack = QuestionPacker(tokenizer, 16, 4)
    questions, contexts = tf.constant(["sea"] * 3), tf.constant([" ".join(WORDS * 5)] * 3)
    windows = pack(questions, contexts)
    chosen = pack(questions, contexts, number=tf.constant([2, 0, 1]))
    rows = [2, 0 + len(windows.question) // 3, 1 + 2 * (len(windows.question) // 3)]
    for name, values in chosen.inputs.items():
        np.testing.assert_array_equal(values, tf.gather(windows.inputs[name], rows))
    np.testing.assert_array_equal(chosen.starts, tf.gather(windows.starts, rows))


def test_too_short_windows_are_refused(tokenizer):
    with pytest.raises(InputError, match="max_length is 4; windows need at least 5"):
        QuestionPacker(tokenizer, 4)
