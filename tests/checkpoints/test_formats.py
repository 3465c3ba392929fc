import shutil

import pytest
from cases import refused
from stored_models import MODEL_GARDEN

from bert_tf import load_model
from bert_tf.checkpoints.formats import locate
from bert_tf.checkpoints.other_formats.conversion import convert


def test_where_a_checkpoint_may_lie(published, models, tmp_path):
    inside = published("unpacked/cased_L-2_H-8_A-2", prefix="model.ckpt-1000")
    prefix = inside / "model.ckpt-1000"
    for source in (inside, inside.parent, prefix, f"{prefix}.index"):
        location = locate(source)
        assert (location.format, location.folder, location.path) == ("tf1", inside, prefix)
    shutil.copytree(models / "encoder", inside.parent / "other")
    assert str(inside) in refused("several models", locate, inside.parent)


def test_what_is_no_model(tmp_path):
    for name in ("archive.zip", "model.keras"):
        (tmp_path / name).write_bytes(b"PK")
    (tmp_path / "empty").mkdir()
    messages = {"archive.zip": "unpack", "model.keras": "open it with keras.models.load_model"}
    messages |= {"nowhere": "does not exist", "empty": "contains no model"}
    for name, message in messages.items():
        refused(message, locate, tmp_path / name)


def test_a_pickle_or_a_second_checkpoint_in_a_folder(published):
    folder = published()
    shutil.copy(folder / "bert_config.json", folder / "config.json")
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    assert locate(folder).format == "tf1"
    for file in folder.glob("*.ckpt*"):
        file.unlink()
    assert locate(folder).format == "hugging_face"  # whose reader names the pickle
    folder = published(prefix="model.ckpt-1000")
    published(prefix="model.ckpt-2000")
    assert "model.ckpt-1000" in refused("model.ckpt-2000", locate, folder)
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2000"\n')
    assert locate(folder).path == folder / "model.ckpt-2000"


@pytest.mark.keras_hub
def test_other_formats_are_told_how_to_become_directories(models, out, published):
    convert(models / "encoder", out, "keras_hub")
    for directory in (out, published(), MODEL_GARDEN / "v2"):
        refused(f"bert-tf convert {directory}", load_model, directory)
