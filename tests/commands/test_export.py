from unittest.mock import Mock

import pytest

from bert_tf import export_model
from bert_tf.serving.export import list_model, set_labels
from bert_tf.text import opening


@pytest.mark.parametrize(("version", "says"), [(4, True), (3, False)])
def test_a_version_that_models_config_does_not_serve_is_named(tmp_path, monkeypatch, version, says):
    model = Mock()
    model.export.return_value = tmp_path / "moods" / str(version)
    model.task.kind.signatures.return_value = {"serving_default": Mock(inputs={})}
    monkeypatch.setattr(opening, "load_answerer", lambda *_: model)
    list_model(tmp_path, "moods")
    set_labels(tmp_path, "moods", {"float32": 1, "bfloat16": 2, "int8": 3})
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    result = export_model(model=tmp_path / "model", name="moods", output=tmp_path, verbose=False)
    line = (
        f"{tmp_path}/models.config serves only the versions 1, 2, 3 of moods: add 4 to its "
        "model_version_policy to have it served"
    )
    assert (line in result.lines()) == says and len(result.lines()) == 1 + says
