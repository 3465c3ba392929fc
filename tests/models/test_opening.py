"""Models that cannot be opened as they are: a line that says what is wrong, and what to do."""

import shutil
from types import SimpleNamespace

import pytest
from small_data import refused

import bert_tf
from bert_tf import BertClassifier
from bert_tf.errors import InputError
from bert_tf.models import opening
from bert_tf.models.opening import open_answerer


def test_a_preset_without_its_vocabulary(preset, tmp_path):
    folder = shutil.copytree(preset, tmp_path / "preset")
    (folder / "vocab.txt").unlink()
    for path in folder.glob("tokenizer.json"):
        path.unlink()
    refused(
        lambda: BertClassifier.from_preset(folder, labels=["a", "b"]),
        "has no vocabulary: put its vocab.txt there, or give preprocessor=None",
    )
    assert BertClassifier.from_preset(folder, num_classes=2, preprocessor=None)


def test_presets(preset, tmp_path):
    open_preset = BertClassifier.from_preset
    (tmp_path / "model.keras").touch()
    refused(lambda: open_preset(tmp_path / "model.keras"), "open it with keras.models.load_model")
    refused(lambda: open_preset(None), "the preset is None: give a folder, or a name on the hub")
    refused(lambda: open_preset(preset / "vocab.txt"), "is a file: give the folder that holds it")
    refused(lambda: open_preset(preset, labels="good"), "labels is 'good': give a list of names")
    own = {"labels": ["bad", "good"]}
    refused(lambda: open_preset(preset, max_length=2, **own), "max_length is 2: give 3 or more")
    refused(
        lambda: open_preset(preset, task="squad", **own),
        "task 'squad' is for BertSpanClassifier, not for BertClassifier: open that class, or give",
    )


def test_pairs_for_a_model_of_single_texts(preset, tmp_path):
    """task.json says what a model was trained on; one without may be of pairs."""
    folder = shutil.copytree(preset, tmp_path / "classifier")
    BertClassifier.from_preset(preset, labels=["no", "yes"]).save_to_preset(folder)
    texts, others = ["sea", "cow"], ["farm", "sea"]
    pairs = (texts, others)
    for ask in (
        lambda: bert_tf.evaluate(model=folder, data=(pairs, ["no", "yes"])),
        lambda: bert_tf.predict(model=folder, input=pairs),
        lambda: bert_tf.predict(model=folder, text=texts, pair=others),
    ):
        refused(ask, "reads single texts, and these are pairs: leave the second texts out")
    (folder / "task.json").unlink()
    answers = bert_tf.predict(model=folder, input=pairs)
    assert [row["label"] for row in answers] == [
        row["label"] for row in bert_tf.predict(model=folder, text=texts, pair=others)
    ]
    assert answers[0]["probability"] != bert_tf.predict(model=folder, text=texts)[0]["probability"]
    assert bert_tf.evaluate(model=folder, data=(pairs, ["no", "yes"])).scores["examples"] == 2


@pytest.mark.parametrize("name", ["normalize", "max_length"])
def test_settings_that_a_saved_model_fixes_are_refused(tmp_path, monkeypatch, name):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "task.json").write_text('{"task": "embedding"}')
    predictor = SimpleNamespace(directory=tmp_path, inputs=["text"])
    monkeypatch.setattr(opening, "Predictor", lambda model: predictor)
    assert open_answerer(tmp_path, {"label_map": [], "normalize": None}).task.name == "embedding"
    with pytest.raises(InputError, match=f"--{name} is fixed in a SavedModel"):
        open_answerer(tmp_path, {name: 0})
