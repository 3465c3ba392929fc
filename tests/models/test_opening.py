import shutil
import sys
from types import SimpleNamespace

from cases import for_each, refused

import bert_tf
from bert_tf import BertClassifier
from bert_tf.extensions import added
from bert_tf.text import opening
from bert_tf.text.opening import open_answerer


def test_a_preset_without_its_vocabulary(preset, tmp_path):
    folder = shutil.copytree(preset, tmp_path / "preset")
    (folder / "vocab.txt").unlink()
    for path in folder.glob("tokenizer.json"):
        path.unlink()
    message = "has no vocabulary: put its vocab.txt there, or give preprocessor=None"
    refused(message, BertClassifier.from_preset, folder, labels=["a", "b"])
    assert BertClassifier.from_preset(folder, num_classes=2, preprocessor=None)


def test_a_missing_tensorflow_is_named_with_its_command(preset, monkeypatch):
    """Where Keras runs on JAX; models of token ids are opened without it."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name in ("opening", "answerer", "preprocessor"):
        monkeypatch.delitem(sys.modules, f"bert_tf.text.{name}", raising=False)
    added.cache_clear()
    told = "needs TensorFlow for raw text: pip install tensorflow"
    refused(f"^from_preset {told}", BertClassifier.from_preset, preset)
    refused("with from_directory", BertClassifier.from_preset, preset, preprocessor=None)
    refused(f"^bert_tf.BertPreprocessor {told}", lambda: bert_tf.BertPreprocessor)


def test_presets(preset):
    open_preset = BertClassifier.from_preset
    refused("the preset is None: give a folder, or a name on the hub", open_preset, None)
    refused("is a file: give the folder that holds it", open_preset, preset / "vocab.txt")
    refused("labels is 'good': give a list of names", open_preset, preset, labels="good")
    own = {"labels": ["bad", "good"]}
    refused("max_length is 2: give 3 or more", open_preset, preset, max_length=2, **own)
    message = "'squad' is for BertSpanClassifier, not for BertClassifier: open that class, or give"
    refused(message, open_preset, preset, task="squad", **own)


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
        refused("reads single texts, and these are pairs: leave the second texts out", ask)
    (folder / "task.json").unlink()
    answers = bert_tf.predict(model=folder, input=pairs)
    again = bert_tf.predict(model=folder, text=texts, pair=others)
    assert [row["label"] for row in answers] == [row["label"] for row in again]
    assert answers[0]["probability"] != bert_tf.predict(model=folder, text=texts)[0]["probability"]
    assert bert_tf.evaluate(model=folder, data=(pairs, ["no", "yes"])).scores["examples"] == 2


@for_each("name", "normalize", "max_length")
def test_settings_that_a_saved_model_fixes_are_refused(tmp_path, monkeypatch, name):
    (tmp_path / "assets.extra").mkdir()
    (tmp_path / "assets.extra" / "task.json").write_text('{"task": "embedding"}')
    predictor = SimpleNamespace(directory=tmp_path, inputs=["text"], labels=())
    monkeypatch.setattr(opening, "Predictor", lambda model: predictor)
    assert open_answerer(tmp_path, {"label_map": [], "normalize": None}).task.name == "embedding"
    refused(f"--{name} is fixed in an export", open_answerer, tmp_path, {name: 0})
