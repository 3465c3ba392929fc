import numpy as np

from bert_tf.tasks.reports import pictures


def test_curves_join_the_means_of_hollow_points(monkeypatch):
    picture = pictures.curves("title", {}, "x", "y")
    assert picture.dtype == np.uint8 and picture.shape == (500, 640, 3)
    monkeypatch.setattr(pictures, "_drawn", lambda figure: figure.axes[0])
    axes = pictures.curves("title", {"one": [(1e-4, [3.0]), (1e-5, [0.0, 2.0])]}, "x", "y")
    (line,), (points,) = axes.lines, axes.collections
    assert line.get_xydata().tolist() == [[1e-5, 1.0], [1e-4, 3.0]]
    assert points.get_offsets().tolist() == [[1e-4, 3.0], [1e-5, 0.0], [1e-5, 2.0]]
    assert len(points.get_facecolor()) == 0
    assert [text.get_text() for text in axes.get_xticklabels()] == ["1e-05", "0.0001"]
