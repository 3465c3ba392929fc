import numpy as np

from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.reports.tables import calibration, classes_report, confusion, per_class

TRUTH, PREDICTED = np.array([0, 0, 0, 1]), np.array([0, 1, 1, 1])


def test_confusion_and_scores_of_each_label():
    found, picture = confusion(["no", "yes", "maybe"], TRUTH, PREDICTED)
    assert found.rows == [["no", 1, 2, 0], ["yes", 0, 1, 0], ["maybe", 0, 0, 0]]
    image = picture.draw()
    assert image.dtype == np.uint8 and image.ndim == 3
    scores = per_class(["no", "yes", "maybe"], TRUTH, PREDICTED)
    found = [["no", 1.0, 1 / 3, 0.5, 3, 1], ["yes", 1 / 3, 1.0, 0.5, 1, 3]]
    assert scores.rows == [*found, ["maybe", None, None, None, 0, 0]]
    assert scores.note == "no example has the label maybe"
    assert scores.texts()[2] == ["maybe", "-", "-", "-", "0", "0"]


def test_calibration():
    """Two answers at 0.95 of which one is right, one at 0.55 that is right, one at 1.0."""
    confidence, right = np.array([0.95, 0.95, 0.55, 1.0]), np.array([True, False, True, True])
    found = calibration(confidence, right)[0]
    assert found.rows[9][1] == 3 and found.rows[5][1:] == [1, 0.55, 1.0]
    assert found.rows[0] == ["0.0 to 0.1", 0, None, None]
    expected = (3 * (2.9 / 3 - 2 / 3) + 1 * 0.45) / 4
    assert found.note == f"expected calibration error {expected:.4f} (10 bins)"


def test_the_worst_errors_have_the_highest_loss():
    examples = Examples("d.tsv", [2, 3, 4], {"text": ["a", "b", "c\td"], "label": ["x", "y", "y"]})
    probabilities = np.array([[0.6, 0.4], [0.7, 0.3], [0.99, 0.01]])
    found = classes_report(examples, ["x", "y"], np.array([0, 1, 1]), probabilities)[-1]
    assert found.columns == ["place", "text", "label", "predicted", "probability", "loss"]
    assert found.texts() == [
        ["d.tsv, line 4", "c d", "y", "x", "0.9900", f"{-np.log(0.01):.4f}"],
        ["d.tsv, line 3", "b", "y", "x", "0.7000", f"{-np.log(0.3):.4f}"],
    ]
