"""The official scores of SQuAD, rule by rule; expected values are worked out by hand."""

import pytest
from cases import for_each

from bert_tf.tasks.scoring.squad_scores import normalize, squad_1_scores, squad_2_scores


@for_each(
    "text expected",
    ("The  Cat,\tsat.", "cat sat"),
    ("a-b", "ab"),  # punctuation goes before articles: no "a" is left to drop
    ("U.S.A.", "usa"),
    ("an apple a day the", "apple day"),
    ("theatre", "theatre"),
    ("“quoted”", "“quoted”"),  # only the 32 ASCII characters
    ("The", ""),
    ("!?", ""),
    ("Ünïcode the ß", "ünïcode ß"),
)
def test_normalize(text, expected):
    assert normalize(text) == expected


@for_each(
    "answer gold exact f1",
    ("the cat", ["Cat!"], 100, 100),
    ("black cat", ["the big black dog"], 0, 40),  # 1 of 2 and 1 of 3 words: 2/5
    ("cat cat", ["cat dog"], 0, 50),  # a word counts as often as both have it
    ("Paris", ["London", "Paris, France", "paris"], 100, 100),  # the best of several
    ("Paris", ["London", "Paris, France"], 0, 200 / 3),
    ("the", ["a"], 100, 0),  # no words on either side: 1.1 gives an F1 of 0
    ("", ["cat"], 0, 0),
)
def test_squad_1_rules(answer, gold, exact, f1):
    found = squad_1_scores({"q": gold}, {"q": answer})
    assert found == {"exact_match": exact, "f1": pytest.approx(f1)}


def test_missing_predictions_and_edges():
    gold = {"q1": ["cat"], "q2": ["dog"], "q3": ["cow"], "q4": ["sea"]}
    found = squad_1_scores(gold, {"q1": "cat", "q3": "a brown cow", "other": "x"})
    assert found == {"exact_match": 25, "f1": pytest.approx((1 + 2 / 3) / 4 * 100)}
    gold = {"q1": ["cat"], "q2": [], "q3": ["cow"], "q4": []}
    found = squad_2_scores(gold, {"q1": "cat", "q2": "x"})
    parts = {"": [50, 50, 2], "HasAns_": [100, 100, 1], "NoAns_": [0, 0, 1]}
    for prefix, scores in parts.items():
        assert [found[f"{prefix}{name}"] for name in ("exact", "f1", "total")] == scores
    gold, odds = {"q1": [], "q2": ["cat"]}, {"q1": -1.0, "q2": 3.0}
    found = squad_2_scores(gold, {"q1": "x", "q2": "dog"}, odds)
    assert found["best_f1"] == 50 and found["best_f1_thresh"] == 0.0
    # As the official script: it counts all unanswerable questions, but divides by those scored.
    found = squad_2_scores({"q1": [], "q2": ["cat"]}, {"q2": "cat"}, {"q2": -1.0})
    assert found["best_exact"] == 200


@for_each(
    "answer gold exact f1",
    ("", [], 100, 100),
    ("cat", [], 0, 0),
    ("", ["cat"], 0, 0),
    ("the", ["a"], 100, 100),  # no words on either side: 1, not 0 as in 1.1
    ("", ["the", "cat"], 0, 0),  # a gold answer without words is dropped, another is left
    ("", ["the", "!"], 100, 100),  # none is left: the empty answer is right
    ("black cat", ["big black dog"], 0, 40),
)
def test_squad_2_rules(answer, gold, exact, f1):
    found = squad_2_scores({"q": gold}, {"q": answer})
    prefix = "HasAns" if gold else "NoAns"
    scores = {"exact": exact, "f1": pytest.approx(f1), "total": 1}
    assert found == scores | {f"{prefix}_{name}": value for name, value in scores.items()}


def test_squad_2_best_thresholds():
    """Sorted by odds: q1 -5, q2 -4, q3 -2, q4 1, q5 2.

    Nothing answered: the 2 unanswerable questions are right. Exact match: q1 +1, q2 +0, q3 -1, q4
    +1, q5 0 (it has no text to give): 3 at -5, then 3, 2, 3, 3: the best is 3 at -5. F1: q1 +1, q2
    +2/3, q3 -1, q4 +1: 3, 3.67, 2.67, 3.67: the best is 3.67, first reached at -4.
    """
    gold = {"q1": ["cat"], "q2": ["brown cow"], "q3": [], "q4": ["sea"], "q5": []}
    answers = {"q1": "cat", "q2": "cow", "q3": "no", "q4": "sea", "q5": ""}
    odds = {"q1": -5.0, "q2": -4.0, "q3": -2.0, "q4": 1.0, "q5": 2.0}
    found = squad_2_scores(gold, answers, odds)
    assert found["best_exact"] == 60 and found["best_exact_thresh"] == -5
    assert found["best_f1"] == pytest.approx(100 * (3 + 2 / 3) / 5)
    assert found["best_f1_thresh"] == -4
    # With that threshold the scores are the best: q4 is lost, q3 and q5 are won.
    found = squad_2_scores(gold, {id_: answers[id_] if odds[id_] <= -4 else "" for id_ in gold})
    assert found["exact"] == 60 and found["f1"] == pytest.approx(100 * (3 + 2 / 3) / 5)
    assert found["HasAns_exact"] == pytest.approx(100 / 3) and found["NoAns_exact"] == 100
