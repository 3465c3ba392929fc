"""Logits to answers in graph, against a transcription of `write_predictions` of run_squad.py."""

import functools
import random

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each

from bert_tf import BertTokenizer
from bert_tf.tasks.kinds.answer_spans import NO_CANDIDATE, _answers, best_answers
from bert_tf.tokenization.windows import QuestionPacker

WORDS = ["sea", "ship", "wave", "farm", "cow", "barn"]
CHARACTERS = ["한", "국", "北", "京", "η", "😀", "e", "\u0301", "\u0323", "👩", "\u200d", "ß", "!"]
JAMO = [chr(c) for c in range(0x1100, 0x1200)]


@pytest.fixture(scope="module")
def tokenizer():
    letters = [c for c in CHARACTERS if c not in ("\u0301", "\u0323", "\u200d", "한", "국")] + JAMO
    pieces = [*WORDS, *letters, *(f"##{letter}" for letter in letters)]
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces])


@pytest.fixture(scope="module")
def answers_of(tokenizer):
    """A function of questions, contexts and a seed for the logits, traced once."""
    pack = QuestionPacker(tokenizer, max_length=16, stride=4, max_question=5)
    signature = [tf.TensorSpec([None], tf.string)] * 2 + [tf.TensorSpec([2]), tf.TensorSpec([])]

    @functools.cache
    def traced(unanswerable):
        @tf.function(input_signature=signature, autograph=False)
        def answer(questions, contexts, seed, scale):
            windows = pack(questions, contexts)
            shape = tf.concat([tf.shape(windows.starts), [2]], 0)
            logits = tf.random.stateless_normal(shape, tf.cast(seed, tf.int32))
            logits = scale * tf.round(logits * 4) / 4  # exact sums, and ties
            options = {"longest": 5, "unanswerable": unanswerable, "threshold": 0.5}
            return logits, windows, best_answers(logits, windows, contexts, **options)

        return answer

    def answers(questions, contexts, seed, unanswerable=True, scale=1.0):
        given = (tf.constant(questions, tf.string), tf.constant(contexts, tf.string))
        logits, windows, found = traced(unanswerable)(*given, tf.constant([seed, 1.0]), scale)
        return logits.numpy(), windows, {name: value.numpy() for name, value in found.items()}

    return answers


def original(logits, windows, contexts, unanswerable, longest=5):
    """The n best of each question, (text, start logit, end logit), and its null odds.

    `write_predictions`, but that only tokens of the context compete, and slices are the answers.
    """
    question = windows.question.numpy()
    starts, ends = windows.starts.numpy(), windows.ends.numpy()
    most = windows.has_most_context.numpy()
    results = []
    for number, context in enumerate(contexts):
        found, null = [], None
        for w in np.flatnonzero(question == number):
            cls = logits[w, 0]
            if null is None or cls.sum() < null.sum():
                null = cls
            inside = np.flatnonzero(starts[w] >= 0)
            start_order = sorted(inside, key=lambda i: logits[w, i, 0], reverse=True)[:20]
            end_order = sorted(inside, key=lambda i: logits[w, i, 1], reverse=True)[:20]
            for i in start_order:
                for j in end_order:
                    if not most[w, i] or j < i or j - i + 1 > longest:
                        continue
                    text = context.encode()[starts[w, i] : ends[w, j]].decode()
                    found.append((text, logits[w, i, 0], logits[w, j, 1]))
        if unanswerable:
            found.append(("", *null))
        found.sort(key=lambda candidate: candidate[1] + candidate[2], reverse=True)
        seen, best = set(), []
        for candidate in found:
            if len(best) == 20:
                break
            if candidate[0] not in seen:
                seen.add(candidate[0])
                best.append(candidate)
        if unanswerable and "" not in seen:
            best.append(("", *null))
        spans = [candidate for candidate in best if candidate[0]]
        odds = null.sum() - (spans[0][1] + spans[0][2]) if spans else NO_CANDIDATE
        results.append((best, odds))
    return results


def random_texts(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)

    def word() -> str:
        is_strange = draw.random() < 0.5
        return "".join(draw.choices(CHARACTERS, k=3)) if is_strange else draw.choice(WORDS)

    lengths = draw.choices(range(40), k=count)
    return [" ".join(word() for _ in range(length)) for length in lengths]


@for_each("unanswerable", True, False)
def test_answers_are_the_originals(answers_of, unanswerable):
    for seed in range(3):
        contexts = random_texts(seed, 12)
        questions = random_texts(seed + 100, 12)
        logits, windows, found = answers_of(questions, contexts, seed, unanswerable)
        for i, (best, odds) in enumerate(original(logits, windows, contexts, unanswerable)):
            count = found["answers_count"][i]
            texts = [text.decode() for text in found["answers_text"][i][:count]]
            assert texts == [text for text, *_ in best]
            for k, name in ((1, "start_logit"), (2, "end_logit")):
                assert found[f"answers_{name}"][i][:count].tolist() == [x[k] for x in best]
            scores = np.array([candidate[1] + candidate[2] for candidate in best])
            expected = np.exp(scores) / np.exp(scores).sum()
            np.testing.assert_allclose(found["answers_probability"][i][:count], expected, rtol=1e-5)
            assert found["null_odds"][i] == np.float32(odds)
            answers = [text for text in texts if text]
            given = answers and not (unanswerable and odds > 0.5)
            assert found["answer"][i].decode() == (answers[0] if given else "")
            null = expected[texts.index("")] if unanswerable and answers else float(not answers)
            np.testing.assert_allclose(found["no_answer_probability"][i], null, rtol=1e-5)
            best_place = texts.index(answers[0] if given else "") if given or unanswerable else None
            score = 1.0 if best_place is None or not answers else expected[best_place]
            np.testing.assert_allclose(found["score"][i], score, rtol=1e-5)


@for_each("scale", 1.0, 1e30, np.inf)  # infinity brings NaN with it
def test_answers_are_slices_of_the_context_whatever_the_logits(answers_of, scale):
    for seed in range(5):
        contexts, questions = random_texts(seed, 16), random_texts(seed + 50, 16)
        *_, found = answers_of(questions, contexts, seed, scale=scale)
        assert all(np.isfinite(values).all() for values in found.values() if values.dtype != object)
        for i, context in enumerate(contexts):
            for k in range(found["answers_count"][i]):
                text = found["answers_text"][i, k].decode()
                start, end = found["answers_start"][i, k], found["answers_end"][i, k]
                assert context[start:end] == text
                start, end = found["answers_start_byte"][i, k], found["answers_end_byte"][i, k]
                assert context.encode()[start:end] == text.encode()
            assert context[found["start"][i] : found["end"][i]] == found["answer"][i].decode()
            texts = found["answers_text"][i][: found["answers_count"][i]].tolist()
            assert len(set(texts)) == len(texts)


def test_blank_texts_have_no_answer(answers_of):
    *_, found = answers_of([b"\xff sea"] * 3, [b"", b" \n\t ", b"sea \xe2\x82"], 3)
    for blank in (0, 1):
        assert found["answer"][blank] == b"" and found["no_answer_probability"][blank] == 1
        assert found["answers_count"][blank] == 1  # "no answer"
    # Without "no answer" as a candidate nothing is left.
    *_, found = answers_of(["sea", ""], ["", " "], 3, unanswerable=False)
    assert found["answers_count"].tolist() == [0, 0] and found["score"].tolist() == [1, 1]


def test_odds_at_the_threshold_are_answered():
    rows = {"text": tf.constant([["sea"]] * 2), "probability": tf.constant([[0.4]] * 2)}
    rows |= {name: tf.constant([[1]] * 2) for name in ("start", "end", "start_byte", "end_byte")}
    one, odds, nothing = tf.constant([1, 1]), tf.constant([0.5, 0.75]), tf.constant([0.6, 0.6])
    assert _answers(rows, one, odds, nothing, True, 0.5)["answer"].numpy().tolist() == [b"sea", b""]


def test_the_last_question_may_have_no_candidate(answers_of):
    _, _, found = answers_of(["sea", "ship"], ["wave", ""], 1, unanswerable=False)
    assert found["answers_count"].tolist() == [1, 0]
