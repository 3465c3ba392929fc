from cases import for_each

from bert_tf.pipelines.examples.tagged_words import chunks, to_iob2
from bert_tf.tasks.scoring.conlleval import score_entities

# Each row is one sentence: two persons side by side, an organization, a place of one word.
IOB1 = "I-PER I-PER B-PER O I-ORG I-ORG I-LOC"
IOB2 = "B-PER I-PER B-PER O B-ORG I-ORG B-LOC"
IOBES = "B-PER E-PER S-PER O B-ORG E-ORG S-LOC"
BILOU = "B-PER L-PER U-PER O B-ORG L-ORG U-LOC"


@for_each("labels", IOB1, IOB2, IOBES, BILOU)
def test_every_scheme_has_the_same_entities(labels):
    found = chunks(labels.split())
    assert found == [("PER", 0, 2), ("PER", 2, 3), ("ORG", 4, 6), ("LOC", 6, 7)]
    assert to_iob2(labels.split()) == IOB2.split()


@for_each(
    "labels expected",
    ("I-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)]),  # a change of type begins a chunk
    ("O E-PER E-PER", [("PER", 1, 2), ("PER", 2, 3)]),  # E after O begins one, E ends one
    ("B-PER E-PER I-PER", [("PER", 0, 2), ("PER", 2, 3)]),
    ("B-geo-loc I-geo-loc", [("geo-loc", 0, 2)]),  # types may hold hyphens
    ("O O", []),
)
def test_wrong_prefixes_are_no_error(labels, expected):
    assert chunks(labels.split()) == expected


def test_the_report_of_conlleval():
    """What the script conlleval of the shared task prints for these labels, worked by hand."""
    gold = ["B-PER I-PER O B-LOC", "O B-ORG I-ORG O", "O"]
    found = ["I-PER I-PER O B-ORG", "O B-ORG O O", "B-LOC"]
    scores = score_entities([s.split() for s in gold], [s.split() for s in found])
    assert scores.report() == (
        "processed 9 tokens with 3 phrases; found: 4 phrases; correct: 1.\n"
        "accuracy:  55.56%; precision:  25.00%; recall:  33.33%; FB1:  28.57\n"
        "              LOC: precision:   0.00%; recall:   0.00%; FB1:   0.00  1\n"
        "              ORG: precision:   0.00%; recall:   0.00%; FB1:   0.00  2\n"
        "              PER: precision: 100.00%; recall: 100.00%; FB1: 100.00  1\n"
    )
    labels = [["B-PER"], ["I-PER"]]
    assert score_entities(labels, labels).all.gold == 2
