import json
import shutil
import signal

import ml_dtypes
import numpy as np
from cases import for_each
from hypothesis import given, settings
from hypothesis import strategies as st
from preloaded import run_code
from safetensors.numpy import load_file
from stored_models import CONFIG, assert_same_tensors, refusal, save_directory, tensors_of

from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.checkpoints.weights_files import read_tensors, write_sharded_weights
from bert_tf.files.atomic import hold_output
from bert_tf.models.language_model import BertPreTrainer


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 300))
def test_shards(tmp_path_factory, sizes, shard_bytes):
    folder = tmp_path_factory.mktemp("shards")
    tensors = {f"t{i}": np.arange(n, dtype="float32") for i, n in enumerate(sizes)}
    write_sharded_weights(folder, tensors, shard_bytes)
    files = [load_file(path) for path in folder.glob("*.safetensors")]
    if 4 * sum(sizes) <= shard_bytes:
        assert [path.name for path in folder.iterdir()] == ["model.safetensors"]
        assert_same_tensors(files[0], tensors)
    elif len(sizes) > 1:
        for shard in files:
            assert len(shard) == 1 or sum(t.nbytes for t in shard.values()) <= shard_bytes
        path = folder / "model.safetensors.index.json"
        assert json.loads(path.read_text())["metadata"]["total_size"] == 4 * sum(sizes)
        assert_same_tensors(dict(read_tensors(path)), tensors)


def test_sharded_directory(models, out):
    conversion = convert(models / "pretrainer", out, shard_bytes=2000)
    assert "model-00001-of-00004.safetensors" in conversion.files
    assert "model.safetensors" not in conversion.files
    assert_same_tensors(tensors_of(out), tensors_of(models / "pretrainer"))
    BertPreTrainer.from_directory(out)

    index = out / "model.safetensors.index.json"
    whole = index.read_text()
    listed = json.loads(whole)
    first = out / "model-00001-of-00004.safetensors"
    for file, told in ((first.name, "lacks bert.more"), ("../x.safetensors", "other folders")):
        listed["weight_map"]["bert.more"] = file
        index.write_text(json.dumps(listed))
        assert told in refusal(out, out.with_name("other"))
    index.write_text(whole)
    first.unlink()
    assert "model-00001-of-00004.safetensors" in refusal(out, out.with_name("other"))


@for_each("kind_of_float", np.float16, ml_dtypes.bfloat16)
def test_half_precision(models, out, kind_of_float):
    dtype = kind_of_float.__name__
    convert(models / "encoder", out / "half", dtype=dtype)
    raw = load_file(out / "half" / "model.safetensors")
    assert all(tensor.dtype == kind_of_float for tensor in raw.values())
    assert json.loads((out / "half" / "config.json").read_text())["dtype"] == dtype
    # Read back exactly: a second conversion changes nothing.
    convert(out / "half", out / "whole")
    tensors = tensors_of(models / "encoder").items()
    rounded = {name: x.astype(kind_of_float).astype(np.float32) for name, x in tensors}
    assert_same_tensors(tensors_of(out / "whole"), rounded)
    convert(out / "whole", out / "again", dtype=dtype)
    first, second = ((out / d / "model.safetensors").read_bytes() for d in ("half", "again"))
    assert first == second


def test_values_too_large_for_half_precision(models, out, tmp_path):
    tensors = tensors_of(models / "encoder")
    tensors["pooler.dense.bias"][0] = 70000
    save_directory(tmp_path / "large", CONFIG, tensors)
    message = refusal(tmp_path / "large", out, dtype="float16", do_lower_case=True)
    assert "pooler.dense.bias has values too large" in message
    message = refusal(models / "encoder", out, "tf1", dtype="float16")
    assert "is for Hugging Face directories" in message


def test_pickles_are_not_read(models, out, tmp_path):
    source = tmp_path / "model"
    source.mkdir()
    shutil.copy(models / "encoder" / "config.json", source)
    (source / "pytorch_model.bin").write_bytes(b"pickle")
    message = refusal(source, out)
    # Neither loses a head nor writes the config anew, as loading it in another class would.
    assert "save_pretrained" not in message
    assert f'"{source}/pytorch_model*.bin"' in message
    assert f'"{source}/model.safetensors"' in message
    compile(message.split("python -c '")[1].rstrip("'"), "advice", "exec")


_KILLED = """
import os, signal, sys
from pathlib import Path
from bert_tf.files.atomic import hold_output
from bert_tf.checkpoints import weights_files

def killed(tensors, file, metadata):
    # As safetensors begins to write: under a name of its own, beside the file.
    (Path(file).parent / ".tmpAbCdEf").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

weights_files.save_file = killed
with hold_output(sys.argv[1]):
    weights_files.write_tensors(Path(sys.argv[1], "model.safetensors"), {}, {})
"""


def test_what_a_killed_write_leaves_is_removed(tmp_path):
    assert run_code(_KILLED, [tmp_path]).returncode == -signal.SIGKILL
    assert any(path.name == ".tmpAbCdEf" for path in tmp_path.rglob("*"))
    with hold_output(tmp_path):
        assert not list(tmp_path.iterdir())
