import itertools

import numpy as np
from cases import for_each

from bert_tf.pipelines.examples import data_faults

SYLLABLES = ("ba", "ko", "mi", "tu"), ("r", "l", "n", "st", "g"), ("en", "ik", "os", "uma", "ade")
WORDS = ["".join(parts) for parts in itertools.product(*SYLLABLES)]


def sentences(count, seed=1):
    draw = np.random.default_rng(seed)
    return [draw.choice(WORDS, draw.integers(10, 25)).tolist() for _ in range(count)]


def edited(words, draw):
    """One word in twelve is replaced, dropped or added."""
    words = list(words)
    for _ in range(max(1, len(words) // 12)):
        place, kind = draw.integers(len(words)), draw.integers(3)
        if kind == 0:
            words[place] = draw.choice(WORDS)
        elif kind == 1:
            del words[place]
        else:
            words.insert(place, draw.choice(WORDS))
    return words


def test_planted_near_duplicates_are_found():
    draw, count, planted = np.random.default_rng(2), 2000, 200
    originals = sentences(count)
    texts = [" ".join(x) for x in originals]
    texts += [" ".join(edited(x, draw)) for x in originals[:planted]]
    group_of = {}
    groups = data_faults.near_duplicates(texts, 0.6)
    for number, group in enumerate(groups):
        group_of |= dict.fromkeys(group.members, number)
    found = [group_of.get(i, -1) == group_of.get(count + i, -2) for i in range(planted)]
    assert np.mean(found) >= 0.95
    assert sum(max(group.members) < count for group in groups) <= 2  # by chance


def test_similarity_is_the_share_of_common_runs_whatever_case_and_punctuation():
    one, other = "abcdefghij", "abcdefghxy"  # 6 runs each, 4 in common
    (group,) = data_faults.near_duplicates([one, other], 0.5)
    assert group.similarities == (1.0, 0.5)
    assert data_faults.near_duplicates([one, other], 0.51) == []
    texts = ["The ship left, at dawn!", "", "the ship LEFT at dawn", "a cow", " ", "no"]
    (group,) = data_faults.near_duplicates(texts, 0.9)
    assert group.members == (0, 2) and group.similarities == (1.0, 1.0)
    assert data_faults.near_duplicates([], 0.5) == data_faults.near_duplicates(["", ""], 0.5) == []
    # Marks and symbols do.
    assert data_faults.near_duplicates(["กา", "กี", "C++", "C", "🙂", "🙁"], 0.9) == []
    one, other = "the ship left the harbour", "a cow stands in the barn"
    rows = [(one, other), (one, one), (f"{one}!", other), (one, ""), ("", other), ("", "")]
    (group,) = data_faults.near_duplicates(rows, 0.9)
    assert group.members == (0, 2)


def with_wrong_labels(classes):
    """A draw, the true labels of 1,200 examples, the given ones, and which of these are wrong."""
    draw, count = np.random.default_rng(3), 1200
    truth = draw.integers(0, classes, count)
    planted = set(draw.choice(count, count // 20, replace=False).tolist())
    shifts = draw.integers(1, classes, count)
    labels = [f"label {(x + (i in planted) * shifts[i]) % classes}" for i, x in enumerate(truth)]
    return draw, truth, labels, planted


@for_each("classes", 2, 4)
def test_planted_wrong_labels_are_found(classes):
    """5% of the labels of texts that mostly show them."""
    draw, truth, labels, planted = with_wrong_labels(classes)
    parts = np.array_split(draw.permutation(WORDS), classes)
    texts = [" ".join([*draw.choice(parts[label], 6), *draw.choice(WORDS, 10)]) for label in truth]
    doubts = data_faults.doubted_labels(texts, labels)
    right = [doubt.index in planted for doubt in doubts]
    assert np.mean(right) >= 0.8 and sum(right) >= len(planted) / 2
    first = doubts[0]
    expected = (labels[first.index], f"label {truth[first.index]}")
    assert (first.label, first.proposed) == expected
    assert [d.probability for d in doubts] == sorted((d.probability for d in doubts), reverse=True)
    assert doubts == data_faults.doubted_labels(texts, labels)


def test_vectors_find_wrong_labels_that_words_do_not_tell():
    draw, truth, labels, planted = with_wrong_labels(2)
    texts = [" ".join(draw.choice(WORDS, 10)) for _ in truth]
    vectors = draw.normal(size=(len(truth), 16)) + 3 * np.eye(16)[truth]
    assert len(data_faults.doubted_labels(texts, labels)) < len(planted) / 10
    right = [doubt.index in planted for doubt in data_faults.doubted_labels(texts, labels, vectors)]
    assert np.mean(right) >= 0.8 and sum(right) >= len(planted) / 2
    texts, labels = [f"text {i}" for i in range(8)], ["a"] * 6 + ["b"] * 2
    assert data_faults.doubted_labels(texts, labels) == []
    draw = np.random.default_rng(1)
    texts = [" ".join(draw.choice(WORDS[:9], 5)) for _ in range(176)]
    labels = ["a"] * 160 + ["rare"] * 8 + ["b"] * 8
    assert data_faults.doubted_labels(texts, labels) == []  # each of the 16 seemed to be an "a"


@for_each(
    "text fault",
    ("Überraschung! 船 “left”", None),
    (" \t", "empty"),
    ("a \ufffd b", "damaged characters"),
    ("a\x00b", "damaged characters"),
    ("schÃ¶n", "read in a wrong encoding"),
    ("Itâ€™s late", "read in a wrong encoding"),
    ("Ã\xa0 table", "read in a wrong encoding"),
    ("Â© 1996", "read in a wrong encoding"),
    ("ÂNGELA and Ã", None),
    ("« LE CAFÉ DU MARCHÉ»", None),
    ("MENÜ“ und TSCHÜ…", None),
    ("kÄ…t", "read in a wrong encoding"),
)
def test_faults_of_texts(text, fault):
    assert data_faults.text_fault(text) == fault


def test_texts_in_another_script():
    main, others = data_faults.other_scripts(
        ["a ship", "Schiff", "корабль", "1996", "배가 떠났다", "船"]
    )
    assert main == "LATIN"
    assert others == {2: "CYRILLIC", 4: "HANGUL", 5: "CJK"}
    assert data_faults.other_scripts(["1", "?"]) == (None, {})


@for_each(
    "texts",
    "aeiou" * 4,
    "12345" * 4,
    "\u6d77\u5c71\u6c34\u706b\u6728" * 4,
    "\U0001f600\U0001f622!?." * 4,
)
def test_labels_of_texts_without_a_word_are_judged(texts):
    """The first character is of the first class, the others of the second."""
    labels = ["one" if text == texts[0] else "other" for text in texts] * 2
    labels[5] = "other"
    assert [x.index for x in data_faults.doubted_labels([*texts] * 2, labels)] == [5]
