"""Exports that answer strings."""

from types import SimpleNamespace

import pytest

from bert_tf.errors import InputError
from bert_tf.models import answerer as answerers
from bert_tf.models.answerer import Answerer


@pytest.mark.parametrize("name", ["normalize", "max_length"])
def test_settings_that_a_saved_model_fixes_are_refused(tmp_path, monkeypatch, name):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "task.json").write_text('{"task": "embedding"}')
    predictor = SimpleNamespace(directory=tmp_path, inputs=["text"])
    monkeypatch.setattr(answerers, "Predictor", lambda model: predictor)
    assert Answerer.open(tmp_path, {"label_map": [], "normalize": None}).task.name == "embedding"
    with pytest.raises(InputError, match=f"--{name} is fixed in a SavedModel"):
        Answerer.open(tmp_path, {name: 0})
