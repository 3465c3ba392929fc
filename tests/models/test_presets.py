"""Presets that cannot be opened: a line that says what is wrong, and what to do."""

import shutil

import pytest

from bert_tf import BertClassifier
from bert_tf.errors import InputError


def refused(ask, message):
    with pytest.raises(InputError, match=message) as caught:
        ask()
    assert "\n" not in str(caught.value)


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
