"""What several models answer together, worked out by hand."""

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.commands.ensemble import evaluate_together
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.ensembles import averaged, joint_kind
from bert_tf.tasks.kinds.choice import Choice
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.regression import Regression
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.kinds.tagging import Tagging
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer


def test_classes_and_choices_get_their_mean_probability_numbers_their_mean():
    answers = [
        {"labels": np.array([[b"no", b"yes"]], object), "probabilities": np.float32([[0.6, 0.4]])},
        {"labels": np.array([[b"yes", b"no"]], object), "probabilities": np.float32([[0.9, 0.1]])},
    ]
    found = averaged(Classification(), None, answers, [["no", "yes"], ["yes", "no"]])
    assert found["labels"].tolist() == [[b"yes", b"no"]]
    assert found["label"].tolist() == [b"yes"]
    assert found["probabilities"] == pytest.approx(np.array([[0.65, 0.35]]))
    answers = [{"probabilities": np.float32([p])} for p in ([0.6, 0.4, 0.0], [0.1, 0.5, 0.4])]
    found = averaged(Choice(), None, answers, [[], []])
    assert found["choice"].tolist() == [1]
    assert found["probabilities"] == pytest.approx(np.array([[0.35, 0.45, 0.2]]), abs=1e-6)
    answers = [{"score": np.float32([1.0, 2.0])}, {"score": np.float32([2.0, 5.0])}]
    assert averaged(Regression(), None, answers, [[], []])["score"].tolist() == [1.5, 3.5]


def test_words_get_the_label_with_the_best_mean_probability():
    """The second model is sure of an entity that spans both words."""
    examples = Examples("x", [1, 2], {"words": ["New York", "é"]})

    def answers(probabilities) -> dict[str, np.ndarray]:
        words = {"count": np.array([2, 1]), "label": np.zeros([2, 2], object)}
        words |= {"start_byte": np.array([[0, 4], [0, 0]]), "end_byte": np.array([[3, 8], [2, 0]])}
        words["probabilities"] = np.float32(probabilities)
        return {f"words_{name}": value for name, value in words.items()}

    nothing = [0.0, 0.0, 0.0]
    first = answers([[[0.6, 0.4, 0.0], [0.6, 0.0, 0.4]], [[0.9, 0.1, 0.0], nothing]])
    second = answers([[[0.0, 0.9, 0.1], [0.8, 0.0, 0.2]], [[0.0, 0.1, 0.9], nothing]])
    labels = [["O", "B-LOC", "I-LOC"], ["I-LOC", "B-LOC", "O"]]
    found = averaged(Tagging(), examples, [first, second], labels)
    assert found["words_label"].tolist() == [[b"B-LOC", b"I-LOC"], [b"O", b""]]
    assert found["words_score"][0] == pytest.approx([0.65, 0.6])
    assert found["entities_count"].tolist() == [1, 0]
    assert found["entities_text"][0].tolist() == [b"New York"]
    assert found["entities_score"][0] == pytest.approx([0.625])
    assert (found["words_end"][1, 0], found["words_end_byte"][1, 0]) == (1, 2)


def n_best(answers, odds) -> dict[str, np.ndarray]:
    """One question: (text, probability, start in bytes, logit) each, the best first."""
    padding = [(b"", 0.0, 0, 0.0)] * (21 - len(answers))
    text, probability, start, logit = zip(*answers, *padding, strict=True)
    start = np.array([start])
    length = np.array([[len(x) for x in text]])
    return {
        "answers_count": np.array([len(answers)], np.int32),
        "answers_text": np.array([text], object),
        "answers_probability": np.float32([probability]),
        **{f"answers_{end}_logit": np.float32([logit]) for end in ("start", "end")},
        **dict.fromkeys(("answers_start", "answers_start_byte"), start),
        **dict.fromkeys(("answers_end", "answers_end_byte"), start + length),
        "null_odds": np.float32([odds]),
        "no_answer_probability": np.float32([sum(p for t, p, *_ in answers if not t)]),
    }


def test_questions_get_the_text_with_the_best_mean_probability():
    first = n_best([(b"1066", 0.7, 9, 3.0), (b"in 1066", 0.3, 6, 1.0)], -1.0)
    second = n_best([(b"in 1066", 0.6, 6, 5.0), (b"", 0.3, 0, 0.5), (b"1067", 0.1, 0, 0.0)], 3.0)
    found = averaged(Span(unanswerable=True), None, [first, second], [[], []])
    assert found["answers_count"].tolist() == [4]
    assert found["answers_text"][0, :4].tolist() == [b"in 1066", b"1066", b"", b"1067"]
    shares = found["answers_probability"][0, :5]
    assert shares == pytest.approx([0.45, 0.35, 0.15, 0.05, 0.0])
    assert found["answers_start_logit"][0, :2] == pytest.approx([3.0, 3.0])
    assert found["null_odds"] == pytest.approx([1.0])
    assert found["no_answer_probability"] == pytest.approx([0.15])
    # The mean threshold decides: 1.0 is above the default, 0.
    assert (found["answer"].tolist(), found["score"].tolist()) == ([b""], pytest.approx([0.15]))
    kinds = [Span(unanswerable=True, null_score_diff_threshold=t) for t in (0.5, 2.5)]
    kind = joint_kind(kinds[0], kinds)
    assert kind.null_score_diff_threshold == 1.5
    found = averaged(kind, None, [first, second], [[], []])
    assert found["answer"].tolist() == [b"in 1066"]
    assert (found["start_byte"].tolist(), found["end_byte"].tolist()) == ([6], [13])
    first, second = n_best([(b"1066", 1.0, 9, 3.0)], -1.0), n_best([], 1e30)
    found = averaged(Span(unanswerable=True), None, [first, second], [[], []])
    assert found["null_odds"].tolist() == [-1.0] and found["answer"].tolist() == [b"1066"]
    found = averaged(Span(unanswerable=True), None, [second, second], [[], []])
    assert found["null_odds"] == pytest.approx(1e30) and found["answer"].tolist() == [b""]


class Answers(Answerer):
    """A model whose logits, held in place of its weights, are the same for all examples."""

    def answers(self, examples, batch_size):
        logits = tf.constant([self.model.logits] * len(examples))
        found = {n: x.numpy() for n, x in self.task.kind.answers(logits, self.labels).items()}
        return Answered(self.task, examples, found, self.labels)


def test_labels_that_each_model_gives_are_given_and_each_is_scored_by_its_own_thresholds():
    """Probabilities of 0.018 and 0.98 are above thresholds of 0.01 and 0.95, whose mean is 0.48."""
    members = []
    for logit, limit in ((-4.0, 0.01), (4.0, 0.95)):
        thresholds = dict.fromkeys(("cow", "sea"), limit)
        task = TASKS["multi_label"].with_settings({"thresholds": thresholds})
        model = SimpleNamespace(config=Mock(), logits=[logit, logit])
        members.append(Answers(task, model, None, ["cow", "sea"]))
    examples = Examples("x", [1], {"text": ["a"], "label": ["cow,sea"]})
    alone = []
    together = evaluate_together(members, examples, 1, answered=alone.append)
    for evaluation in (*alone, together):
        assert evaluation.scores["f1_micro"] == evaluation.scores["exact_match"] == 1
