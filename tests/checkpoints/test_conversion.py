"""Every format in and out: to the last bit, and every refusal."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bert_tf import BertConfig, BertEncoder, BertTokenizer, load_model
from bert_tf.checkpoints.formats import locate
from bert_tf.checkpoints.other_formats.conversion import convert, read_model
from bert_tf.checkpoints.other_formats.tensorflow_checkpoint import tf1_name, write_tf1
from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.checkpoints.weight_names import canonical_name, named_weights, tensor_shapes
from bert_tf.checkpoints.weights_files import read_tensors, write_sharded_weights
from bert_tf.errors import InputError
from bert_tf.models.encoders import LstmEncoder
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.loading import save_model
from bert_tf.models.task_models import BertClassifier, BertMultiLabelClassifier, BertSentenceEncoder

GOLDEN = Path(__file__).parents[1] / "golden" / "model_garden"
CONFIG = BertConfig(
    vocab_size=19,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=12,
    max_position_embeddings=10,
    hidden_act="gelu_new",
)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklm", "##a"]
INPUTS = {
    "token_ids": np.array([[2, 7, 18, 3, 11, 3, 0, 0], [2, 5, 3, 9, 12, 8, 4, 3]]),
    "segment_ids": np.array([[0, 0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]]),
    "padding_mask": np.array([[1, 1, 1, 1, 1, 1, 0, 0], [1] * 8]),
}
KINDS = {
    "encoder": lambda: BertEncoder(CONFIG, seed=1),
    "pretrainer": lambda: BertPreTrainer(CONFIG, seed=1),
    "classifier": lambda: BertClassifier(CONFIG, labels=["no", "perhaps", "yes"], seed=1),
}
# What a format has no place for.
LEFT_OUT = {
    ("keras_hub", "pretrainer"): "cls.seq_relationship.",
    ("model_garden", "classifier"): "classifier.",
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A model directory of each kind, every weight drawn at random."""
    root = tmp_path_factory.mktemp("models")
    draw = np.random.default_rng(1)
    for name, make in KINDS.items():
        model = make()
        for variable in model.trainable_variables:
            variable.assign(draw.normal(size=variable.shape, scale=0.4))
        save_model(model, root / name, BertTokenizer(PIECES))
    return root


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


def tensors_of(directory):
    return read_model(directory)[1].tensors


def assert_same_tensors(ours, theirs, without="-"):
    expected = {name: t for name, t in theirs.items() if not name.startswith(without)}
    assert ours.keys() == expected.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == np.float32
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)


def refusal(*arguments, **options):
    with pytest.raises(InputError) as caught:
        convert(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert not Path(arguments[1]).exists()
    assert not list(Path(arguments[1]).parent.glob(".*.tmp"))
    return message


# Round trips.


@pytest.mark.parametrize("to", ["hugging_face", "tf1", "keras_hub", "model_garden"])
def test_round_trip_to_the_last_bit(models, kind, to, out):
    done = convert(models / kind, out / "there", to)
    assert done.source.format == "hugging_face"
    back = convert(out / "there", out / "back")
    assert back.source.format == to
    assert sorted(done.files) == sorted(
        str(p.relative_to(out / "there")) for p in (out / "there").rglob("*") if p.is_file()
    )
    lost = LEFT_OUT.get((to, kind), "-")
    assert_same_tensors(tensors_of(out / "back"), tensors_of(models / kind), without=lost)
    assert (lost != "-") == any("is left out" in note for note in done.model.notes)

    ours, theirs = (BertConfig.from_json(d / "config.json") for d in (models / kind, out / "back"))
    expected = replace(ours, extra=theirs.extra)
    if to == "tf1":  # which has one name for both
        expected = replace(expected, hidden_act="gelu")
    if to != "hugging_face" and kind == "classifier":  # KerasHub keeps no labels
        numbered = {0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"}
        kept = {"tf1": ours.id2label, "keras_hub": numbered, "model_garden": None}[to]
        expected = replace(expected, id2label=kept)
    assert theirs == expected
    assert (out / "back" / "vocab.txt").read_bytes() == (models / kind / "vocab.txt").read_bytes()
    tokenizer = BertTokenizer.from_directory(out / "back")
    assert tokenizer.settings == BertTokenizer(PIECES).settings


def test_same_bytes_as_save_model(models, kind, out):
    convert(models / kind, out)
    for path in out.iterdir():
        if path.name != "model.safetensors":  # the order of the tensors is its own
            assert path.read_bytes() == (models / kind / path.name).read_bytes(), path.name
    ours, theirs = (load_file(d / "model.safetensors") for d in (out, models / kind))
    assert_same_tensors(ours, theirs)
    mode = (out / "config.json").stat().st_mode
    assert (out / "model.safetensors").stat().st_mode == mode


@settings(max_examples=8, deadline=None)
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 4),
    width=st.integers(1, 5),
    inner=st.integers(1, 9),
    vocabulary=st.integers(1, 12),
    positions=st.integers(1, 7),
    seed=st.integers(0, 99),
)
def test_tf1_of_any_shape(
    tmp_path_factory, layers, heads, width, inner, vocabulary, positions, seed
):
    config = BertConfig(
        num_hidden_layers=layers,
        num_attention_heads=heads,
        hidden_size=heads * width,
        intermediate_size=inner,
        vocab_size=vocabulary,
        max_position_embeddings=positions,
    )
    draw = np.random.default_rng(seed)
    tensors = {
        name: draw.normal(size=shape).astype("float32")
        for name, shape in tensor_shapes(config).items()
    }
    root = tmp_path_factory.mktemp("any")
    save_directory(root / "model", config, tensors)
    for to in ("tf1", "model_garden"):
        convert(root / "model", root / to, to)
        assert_same_tensors(tensors_of(root / to), tensors)


def save_directory(directory, config, tensors):
    """A Hugging Face directory of canonical tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    named = {n if n.startswith("cls.") else f"bert.{n}": t for n, t in tensors.items()}
    save_file(named, directory / "model.safetensors", metadata={"format": "pt"})
    config.to_json(directory / "config.json")


def test_tensor_shapes_are_those_of_the_model():
    model = BertPreTrainer(CONFIG)
    ours = {canonical_name(weight.name): weight.shape for weight in named_weights(model)}
    assert tensor_shapes(CONFIG) == ours
    recurrent = replace(CONFIG, attention_direction="recurrent")
    weights = named_weights(LstmEncoder(recurrent))
    shapes = tensor_shapes(recurrent).items()
    assert {canonical_name(weight.name): weight.shape for weight in weights} == {
        name: shape for name, shape in shapes if not name.startswith("cls.")
    }


# The original's checkpoints.


def test_names_of_the_original(models, out):
    convert(models / "pretrainer", out, "tf1")
    listed = dict(tf.train.list_variables(str(out / "bert_model.ckpt")))
    block = "bert/encoder/layer_1"
    assert {name: shape for name, shape in listed.items() if "layer_0" not in name} == {
        "bert/embeddings/LayerNorm/beta": [8],
        "bert/embeddings/LayerNorm/gamma": [8],
        "bert/embeddings/position_embeddings": [10, 8],
        "bert/embeddings/token_type_embeddings": [2, 8],
        "bert/embeddings/word_embeddings": [19, 8],
        f"{block}/attention/output/LayerNorm/beta": [8],
        f"{block}/attention/output/LayerNorm/gamma": [8],
        f"{block}/attention/output/dense/bias": [8],
        f"{block}/attention/output/dense/kernel": [8, 8],
        f"{block}/attention/self/key/bias": [8],
        f"{block}/attention/self/key/kernel": [8, 8],
        f"{block}/attention/self/query/bias": [8],
        f"{block}/attention/self/query/kernel": [8, 8],
        f"{block}/attention/self/value/bias": [8],
        f"{block}/attention/self/value/kernel": [8, 8],
        f"{block}/intermediate/dense/bias": [12],
        f"{block}/intermediate/dense/kernel": [8, 12],
        f"{block}/output/LayerNorm/beta": [8],
        f"{block}/output/LayerNorm/gamma": [8],
        f"{block}/output/dense/bias": [8],
        f"{block}/output/dense/kernel": [12, 8],
        "bert/pooler/dense/bias": [8],
        "bert/pooler/dense/kernel": [8, 8],
        "cls/predictions/output_bias": [19],
        "cls/predictions/transform/LayerNorm/beta": [8],
        "cls/predictions/transform/LayerNorm/gamma": [8],
        "cls/predictions/transform/dense/bias": [8],
        "cls/predictions/transform/dense/kernel": [8, 8],
        "cls/seq_relationship/output_bias": [2],
        "cls/seq_relationship/output_weights": [2, 8],
    }
    reader = tf.train.load_checkpoint(str(out / "bert_model.ckpt"))
    ours = load_file(models / "pretrainer" / "model.safetensors")
    np.testing.assert_array_equal(
        reader.get_tensor(f"{block}/attention/self/query/kernel"),
        ours["bert.encoder.layer.1.attention.self.query.weight"].T,
    )
    np.testing.assert_array_equal(
        reader.get_tensor("cls/seq_relationship/output_weights"),
        ours["cls.seq_relationship.weight"],
    )
    config = json.loads((out / "bert_config.json").read_text())
    assert config == {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 8,
        "initializer_range": 0.02,
        "intermediate_size": 12,
        "max_position_embeddings": 10,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "type_vocab_size": 2,
        "vocab_size": 19,
    }


@pytest.fixture
def published(models, tmp_path):
    """A folder as Google's archives unpack to, with what else its scripts leave in one."""

    def make(
        folder="uncased_L-2_H-8_A-2",
        prefix="bert_model.ckpt",
        kind="pretrainer",
        change=lambda tensors: None,
        pieces=PIECES,
    ):
        folder = tmp_path / folder
        folder.mkdir(parents=True, exist_ok=True)
        _, model = read_model(models / kind)
        tensors = {}
        for name, tensor in model.tensors.items():
            theirs = tf1_name(name)
            tensors[theirs] = tensor.T if theirs.endswith("/kernel") else tensor
        for name in list(tensors):
            tensors[f"{name}/adam_m"] = np.ones(3, np.float32)
            tensors[f"{name}/adam_v"] = np.ones(3, np.float32)
        tensors["global_step"] = np.array(1000, np.int64)
        change(tensors)
        tf.raw_ops.SaveV2(
            prefix=str(folder / prefix),
            tensor_names=list(tensors),
            shape_and_slices=[""] * len(tensors),
            tensors=list(tensors.values()),
        )
        values = {
            k: v for k, v in CONFIG.to_dict().items() if k not in ("model_type", "layer_norm_eps")
        }
        (folder / "bert_config.json").write_text(json.dumps({**values, "hidden_act": "gelu"}))
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
        return folder

    return make


def test_a_published_checkpoint(published, models, out):
    source = published()
    done = convert(source, out)
    assert_same_tensors(tensors_of(out), tensors_of(models / "pretrainer"))
    assert any("uncased_L-2_H-8_A-2" in note for note in done.model.notes)
    assert BertTokenizer.from_directory(out).settings["do_lower_case"] is True
    assert BertConfig.from_json(out / "config.json").hidden_act == "gelu"
    BertPreTrainer.from_directory(out)


def test_where_a_checkpoint_may_lie(published, models, tmp_path):
    inside = published("unpacked/cased_L-2_H-8_A-2", prefix="model.ckpt-1000")
    prefix = inside / "model.ckpt-1000"
    for source in (inside, inside.parent, prefix, f"{prefix}.index"):
        found = locate(source)
        assert (found.format, found.folder, found.path) == ("tf1", inside, prefix)
    (tmp_path / "archive.zip").write_bytes(b"PK")
    assert "unpack" in refusal(tmp_path / "archive.zip", tmp_path / "out")
    (tmp_path / "model.keras").write_bytes(b"PK")
    assert "open it with keras.models.load_model" in refusal(
        tmp_path / "model.keras", tmp_path / "out"
    )
    assert "does not exist" in refusal(tmp_path / "nowhere", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    assert "holds no model" in refusal(tmp_path / "empty", tmp_path / "out")
    shutil.copytree(models / "encoder", inside.parent / "other")
    message = refusal(inside.parent, tmp_path / "out")
    assert "several models" in message
    assert str(inside) in message


def test_a_pickle_does_not_hide_a_checkpoint(published, tmp_path):
    """As in folders that hold a model in each format, with PyTorch's config."""
    folder = published()
    shutil.copy(folder / "bert_config.json", folder / "config.json")
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    assert locate(folder).format == "tf1"
    for file in folder.glob("*.ckpt*"):
        file.unlink()
    assert locate(folder).format == "hugging_face"  # whose reader names the pickle
    assert "pytorch_model.bin" in refusal(folder, tmp_path / "out")


def test_several_checkpoints_in_a_folder(published, tmp_path):
    folder = published(prefix="model.ckpt-1000")
    published(prefix="model.ckpt-2000")
    message = refusal(folder, tmp_path / "out")
    assert "model.ckpt-1000" in message
    assert "model.ckpt-2000" in message
    (folder / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-2000"\n')
    assert locate(folder).path == folder / "model.ckpt-2000"


@pytest.mark.parametrize(
    ("folder", "pieces", "expected"),
    [
        ("uncased_L-12_H-768_A-12", PIECES, True),
        ("wwm_uncased_L-24_H-1024_A-16", PIECES, True),
        ("chinese_L-12_H-768_A-12", PIECES, True),
        ("multilingual_L-12_H-768_A-12", PIECES, True),
        ("cased_L-12_H-768_A-12", PIECES, False),
        ("multi_cased_L-12_H-768_A-12", PIECES, False),
        ("bert-base-german-cased", PIECES, False),
        ("mine", [*PIECES[:-1], "B"], False),
    ],
)
def test_casing(published, out, folder, pieces, expected):
    done = convert(published(folder, pieces=pieces), out)
    assert done.model.tokenizer.settings["do_lower_case"] is expected
    assert any("Taken to be" in note for note in done.model.notes)
    assert BertTokenizer.from_directory(out).settings["do_lower_case"] is expected


def test_casing_is_never_guessed(published, out):
    source = published("showcased")
    assert "--do_lower_case" in refusal(source, out)
    for value in (True, False):
        done = convert(source, out, do_lower_case=value, overwrite=True)
        assert done.model.tokenizer.settings["do_lower_case"] is value
        assert done.model.notes == []
    # What the files say needs no guess, and gives way to the user's word.
    (source / "tokenizer_config.json").write_text('{"do_lower_case": false, "model_max_length": 9}')
    assert convert(source, out, overwrite=True).model.tokenizer.settings["do_lower_case"] is False
    done = convert(source, out, do_lower_case=True, overwrite=True)
    assert done.model.tokenizer.settings["do_lower_case"] is True


@pytest.mark.parametrize(
    "parts",
    [
        ["pooler"],
        ["seq_relationship"],
        ["predictions"],
        ["pooler", "seq_relationship", "predictions"],
    ],
)
def test_missing_parts(published, out, parts):
    def drop(tensors):
        for name in list(tensors):
            if any(f"/{part}/" in name for part in parts):
                del tensors[name]

    done = convert(published(change=drop), out)
    assert not any(part in name for part in parts for name in done.model.tensors)
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == [
        {
            "pooler": "BertForPreTraining",
            "seq_relationship": "BertForMaskedLM",
            "predictions": "BertForNextSentencePrediction",
        }[parts[0]]
        if len(parts) == 1
        else "BertModel"
    ]
    BertEncoder.from_directory(out)
    with pytest.raises(InputError, match=r"has no .*: train it first"):
        BertPreTrainer.from_directory(out)
    BertPreTrainer.from_directory(out, allow_new_head=True)


def test_the_heads_of_its_other_scripts(published, models, out):
    assert_same_tensors(
        tensors_of(published("uncased_one", kind="classifier")), tensors_of(models / "classifier")
    )

    def squad(tensors):
        tensors["cls/squad/output_weights"] = np.ones((2, 8), np.float32)
        tensors["cls/squad/output_bias"] = np.ones(2, np.float32)
        tensors["my/own/head"] = np.ones(3, np.float32)

    done = convert(published("uncased_two", kind="encoder", change=squad), out)
    assert done.model.tensors["qa_outputs.weight"].shape == (2, 8)
    assert done.model.notes[0] == "Left out, as no part of a BERT: my/own/head."
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"] == ["BertForQuestionAnswering"]
    assert "qa_outputs.weight" in load_file(out / "model.safetensors")


def test_checkpoints_that_do_not_fit(published, out):
    def lose(tensors):
        del tensors["bert/encoder/layer_1/output/dense/bias"]
        tensors["bert/encoder/embedding_hidden_mapping_in/kernel"] = np.ones((8, 8), np.float32)

    message = refusal(published(change=lose), out)
    assert "encoder.layer.1.output.dense.bias is missing" in message
    assert "embedding_hidden_mapping_in/kernel is unexpected" in message

    source = published()
    path = source / "bert_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert "and 11 more" in refusal(source, out)
    path.write_text(json.dumps({**config, "num_hidden_layers": 1}))
    assert "layer_1/attention/output/LayerNorm/beta is unexpected" in refusal(source, out)
    path.write_text(json.dumps({**config, "vocab_size": 30}))
    assert "word_embeddings.weight is [19, 8], not [30, 8]" in refusal(source, out)
    path.unlink()
    assert "bert_config.json" in refusal(source, out)


def test_half_a_checkpoint(published, out):
    source = published()
    data = source / "bert_model.ckpt.data-00000-of-00001"
    content = data.read_bytes()
    data.write_bytes(content[: len(content) // 2])
    assert "cannot be read" in refusal(source, out)
    data.unlink()
    assert str(source) in refusal(source, out)
    (source / "bert_model.ckpt.index").write_bytes(b"nonsense")
    assert "no complete TensorFlow checkpoint" in refusal(source, out)


def test_vocabularies_of_other_sizes(published, out):
    done = convert(published(pieces=PIECES[:17]), out)
    assert "the last 2 are padding" in done.model.notes[-1]
    load_model(out)
    source = published(pieces=[*PIECES, "x", "y"])
    assert "has 21 pieces, the model 19 embeddings" in refusal(source, out.with_name("other"))
    shutil.copy(source / "vocab.txt", out)
    with pytest.raises(InputError, match="has 21 pieces"):
        load_model(out)
    (source / "vocab.txt").unlink()
    done = convert(source, out, overwrite=True)
    assert "no vocabulary" in done.model.notes[-1]
    assert not (out / "vocab.txt").exists()


def test_what_the_original_cannot_compute(models, out):
    _, model = read_model(models / "encoder")
    model.config = replace(model.config, hidden_act="silu")
    with pytest.raises(InputError, match="'silu'"):
        write_tf1(model, out)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
def test_what_the_original_computes_differently_is_noted(models, out, epsilon):
    _, model = read_model(models / "encoder")
    model.config = replace(model.config, layer_norm_eps=epsilon, hidden_act="gelu")
    out.mkdir()
    write_tf1(model, out)
    assert any("tanh approximation" in note for note in model.notes)
    assert any("1e-12 to variances, this one 1e-05" in note for note in model.notes) == (
        epsilon == 1e-5
    )


# Hugging Face directories.


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 300))
def test_shards(tmp_path_factory, sizes, shard_bytes):
    folder = tmp_path_factory.mktemp("shards")
    tensors = {f"t{i}": np.arange(n, dtype="float32") for i, n in enumerate(sizes)}
    files = write_sharded_weights(folder, tensors, shard_bytes)
    assert sorted(files) == sorted(path.name for path in folder.iterdir())
    if 4 * sum(sizes) <= shard_bytes:
        assert files == ["model.safetensors"]
        assert_same_tensors(load_file(folder / files[0]), tensors)
        return
    for name in files[:-1]:
        shard = load_file(folder / name)
        assert len(shard) == 1 or sum(t.nbytes for t in shard.values()) <= shard_bytes
    if len(files) > 1:
        index = json.loads((folder / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == 4 * sum(sizes)
        read = dict(read_tensors(folder / "model.safetensors.index.json"))
        assert_same_tensors(read, tensors)


def test_sharded_directory(models, out):
    done = convert(models / "pretrainer", out, shard_bytes=2000)
    assert "model-00001-of-00004.safetensors" in done.files
    assert "model.safetensors" not in done.files
    assert_same_tensors(tensors_of(out), tensors_of(models / "pretrainer"))
    loaded = BertPreTrainer.from_directory(out)
    whole = BertPreTrainer.from_directory(models / "pretrainer")
    for ours, theirs in zip(loaded.trainable_variables, whole.trainable_variables, strict=True):
        np.testing.assert_array_equal(ours, theirs)

    index = out / "model.safetensors.index.json"
    listed = json.loads(index.read_text())
    first = out / "model-00001-of-00004.safetensors"
    listed["weight_map"]["bert.more"] = first.name
    index.write_text(json.dumps(listed))
    assert "lacks bert.more" in refusal(out, out.with_name("other"))
    listed["weight_map"]["bert.more"] = "../elsewhere.safetensors"
    index.write_text(json.dumps(listed))
    assert "other folders" in refusal(out, out.with_name("other"))
    del listed["weight_map"]["bert.more"]
    index.write_text(json.dumps(listed))
    first.unlink()
    assert "model-00001-of-00004.safetensors" in refusal(out, out.with_name("other"))


@pytest.mark.parametrize(
    ("dtype", "kind_of_float"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)]
)
def test_half_precision(models, out, dtype, kind_of_float):
    convert(models / "encoder", out / "half", dtype=dtype)
    raw = load_file(out / "half" / "model.safetensors")
    assert all(tensor.dtype == kind_of_float for tensor in raw.values())
    assert json.loads((out / "half" / "config.json").read_text())["dtype"] == dtype
    # Read back exactly: a second conversion changes nothing.
    convert(out / "half", out / "whole")
    rounded = {
        name: tensor.astype(kind_of_float).astype(np.float32)
        for name, tensor in tensors_of(models / "encoder").items()
    }
    assert_same_tensors(tensors_of(out / "whole"), rounded)
    convert(out / "whole", out / "again", dtype=dtype)
    first, second = ((out / d / "model.safetensors").read_bytes() for d in ("half", "again"))
    assert first == second


def test_values_too_large_for_half_precision(models, out, tmp_path):
    tensors = tensors_of(models / "encoder")
    tensors["pooler.dense.bias"][0] = 70000
    save_directory(tmp_path / "large", CONFIG, tensors)
    assert "pooler.dense.bias has values too large" in refusal(
        tmp_path / "large", out, dtype="float16", do_lower_case=True
    )
    assert "is for Hugging Face directories" in refusal(
        models / "encoder", out, "tf1", dtype="float16"
    )


def test_other_peoples_habits(models, out, tmp_path):
    tensors = tensors_of(models / "pretrainer")
    config = replace(CONFIG, extra={"architectures": ["BertForPreTraining"]})
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): tensor
        for name, tensor in tensors.items()
    }
    old["embeddings.position_ids"] = np.arange(10)[None]
    old["cls.predictions.decoder.weight"] = tensors["embeddings.word_embeddings.weight"].copy()
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].copy()
    save_directory(tmp_path / "old", config, old)
    convert(tmp_path / "old", out)
    assert_same_tensors(tensors_of(out), tensors)

    old["cls.predictions.decoder.bias"] += 1
    save_directory(tmp_path / "old", config, old)
    assert "cls.predictions.decoder.bias" in refusal(tmp_path / "old", tmp_path / "no")
    old["cls.predictions.decoder.bias"] -= 1
    old["cls.predictions.decoder.weight"][0] += 1
    save_directory(tmp_path / "old", config, old)
    assert "cls.predictions.decoder.weight differs" in refusal(tmp_path / "old", tmp_path / "no")


def test_a_classifier_of_tokens_stays_one(models, out, tmp_path):
    config = replace(CONFIG, extra={"architectures": ["BertForTokenClassification"]})
    tensors = tensors_of(models / "classifier")
    del tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]
    save_directory(tmp_path / "tokens", config, tensors)
    convert(tmp_path / "tokens", out)
    written = json.loads((out / "config.json").read_text())
    assert written["architectures"] == ["BertForTokenClassification"]
    for to in ("tf1", "keras_hub"):  # whose classifiers are of sequences
        pooled = tmp_path / f"pooled-{to}"  # KerasHub has no model without a pooler
        save_directory(pooled, config, tensors_of(models / "classifier"))
        done = convert(pooled, tmp_path / to, to)
        assert any("classifier is left out" in note for note in done.model.notes)
        assert not read_model(tmp_path / to)[1].has("classifier.")
    assert written["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}


def test_a_classifier_without_a_class_is_not_one_of_texts(models, out, published, tmp_path):
    tensors = tensors_of(models / "classifier")
    for name in ("weight", "bias"):
        tensors.pop(f"pooler.dense.{name}")
    save_directory(tmp_path / "model", CONFIG, tensors)
    done = convert(tmp_path / "model", out)
    assert not done.model.has("classifier.")
    assert "The classifier is left out, as nothing says" in done.model.notes[0]
    assert '"architectures": ["BertForSequenceClassification"]' in done.model.notes[0]
    # With a pooler it may be one: as of run_classifier.py.
    done = convert(published("uncased_one", kind="classifier"), out, overwrite=True)
    assert "is taken to be of whole texts" in done.model.notes[0]
    assert done.model.problem_type == "single_label_classification"
    # A layer of one's own on a bare encoder.
    _, model = read_model(models / "classifier")
    bare = replace(CONFIG, extra={"architectures": ["BertModel"]})
    save_directory(tmp_path / "own", bare, model.tensors)
    with pytest.raises(InputError, match="holds a BertModel, which has no classifier"):
        BertClassifier.from_directory(tmp_path / "own")


@pytest.mark.parametrize("to", ["tf1", pytest.param("keras_hub", marks=pytest.mark.slow)])
def test_several_labels_stay_several(models, out, tmp_path, to):
    source = tmp_path / "several"
    save_model(BertMultiLabelClassifier(CONFIG, labels=["a", "b"]), source, BertTokenizer(PIECES))
    done = convert(source, out / "there", to)
    assert any("problem_type" in note or "sigmoid" in note for note in done.model.notes)
    convert(out / "there", out / "back")
    assert isinstance(load_model(out / "back"), BertMultiLabelClassifier)


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


def tokenizer_json(directory, **normalizer):
    """What Hugging Face's fifth version writes in place of vocab.txt."""
    values = {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": False,
            **normalizer,
        },
        "model": {"type": "WordPiece", "vocab": {p: i for i, p in enumerate(PIECES[:-1])}},
        "added_tokens": [{"id": 0, "content": "[PAD]"}, {"id": 18, "content": "##a"}],
    }
    (directory / "tokenizer.json").write_text(json.dumps(values))


def test_vocabulary_from_tokenizer_json(models, out, tmp_path):
    source = tmp_path / "model"
    shutil.copytree(models / "encoder", source)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (source / name).unlink()
    tokenizer_json(source)
    done = convert(source, out)
    assert "vocab.txt is made from tokenizer.json." in done.model.notes
    tokenizer = BertTokenizer.from_directory(out)
    assert tokenizer.vocabulary == PIECES
    assert tokenizer.settings["do_lower_case"] is False
    tokenizer_json(source, type="Sequence")
    assert "not BERT's" in refusal(source, out.with_name("no"))


def test_other_formats_are_told_how_to_become_directories(models, out, published):
    convert(models / "encoder", out, "keras_hub")
    for directory in (out, published(), GOLDEN / "v2"):
        with pytest.raises(InputError, match=f"bert-tf convert {directory}"):
            load_model(directory)


# KerasHub presets.


def test_keras_hub_computes_the_same(models, out):
    keras_nlp = pytest.importorskip("keras_nlp")
    convert(models / "pretrainer", out, "keras_hub")
    backbone = keras_nlp.models.BertBackbone.from_preset(str(out))
    theirs = backbone({name: value.astype("int32") for name, value in INPUTS.items()})
    ours = BertEncoder.from_directory(models / "pretrainer")(INPUTS)
    tokens = INPUTS["padding_mask"] == 1
    for name in ("sequence_output", "pooled_output"):
        one, other = np.asarray(ours[name]), np.asarray(theirs[name])
        if name == "sequence_output":
            one, other = one[tokens], other[tokens]
        assert np.abs(one - other).max() / np.abs(one).max() < 1e-5
    task = keras_nlp.models.BertMaskedLM.from_preset(str(out))
    bias = tensors_of(models / "pretrainer")["cls.predictions.bias"]
    np.testing.assert_array_equal(task.masked_lm_head._bias, bias)
    ids = keras_nlp.models.BertTokenizer.from_preset(str(out))(["A bc", "éa"])
    np.testing.assert_array_equal(ids[0], BertTokenizer(PIECES).tokenize(["A bc"])[0])


def test_keras_hub_classifier(models, out):
    keras_nlp = pytest.importorskip("keras_nlp")
    done = convert(models / "classifier", out, "keras_hub")
    assert any("no, perhaps, yes" in note for note in done.model.notes)
    task = keras_nlp.models.BertTextClassifier.from_preset(str(out), preprocessor=None)
    theirs = np.asarray(task({name: value.astype("int32") for name, value in INPUTS.items()}))
    ours = np.asarray(load_model(models / "classifier", BertClassifier)(INPUTS))
    assert np.abs(ours - theirs).max() / np.abs(ours).max() < 1e-5


def test_a_classifier_of_a_preset_says_what_it_computes(models, out, tmp_path):
    keras_nlp = pytest.importorskip("keras_nlp")
    convert(models / "classifier", tmp_path / "preset", "keras_hub")
    backbone = keras_nlp.models.BertBackbone.from_preset(str(tmp_path / "preset"))
    task = keras_nlp.models.BertTextClassifier(backbone, 3, activation="softmax", dropout=0.3)
    task.save_to_preset(str(tmp_path / "task"))
    done = convert(tmp_path / "task", out / "task")
    assert any("The activation softmax" in note for note in done.model.notes)
    assert done.model.problem_type == "single_label_classification"
    assert BertConfig.from_json(out / "task" / "config.json").classifier_dropout == 0.3
    path = tmp_path / "preset" / "preprocessor.json"
    cut = path.read_text().replace('"sequence_length": 10', '"sequence_length": 7')
    (tmp_path / "task" / "preprocessor.json").write_text(cut)
    notes = convert(tmp_path / "task", out / "task", overwrite=True).model.notes
    assert any("sequence_length 7 is left out: give it as --max_length" in n for n in notes)
    path = tmp_path / "task" / "task.json"
    path.write_text(path.read_text().replace('"softmax"', '"relu"'))
    assert "has the activation 'relu'" in refusal(tmp_path / "task", tmp_path / "no")
    (tmp_path / "task" / "task.weights.h5").unlink()
    done = convert(tmp_path / "task", out / "bare")
    assert (
        "no task.weights.h5: the head of the BertTextClassifier is left out"
        in (done.model.notes[0])
    )
    assert done.model.problem_type is None  # whose advice is to export
    assert_same_tensors(tensors_of(out / "bare"), tensors_of(models / "classifier"), "classifier.")


def test_presets_made_elsewhere(models, out, tmp_path):
    keras_nlp = pytest.importorskip("keras_nlp")
    backbone = keras_nlp.models.BertBackbone(
        vocabulary_size=19,
        num_layers=2,
        num_heads=2,
        hidden_dim=8,
        intermediate_dim=12,
        max_sequence_length=10,
    )
    backbone.save_to_preset(str(tmp_path / "bare"))
    done = convert(tmp_path / "bare", out)
    assert done.source.format == "keras_hub"
    assert "no vocabulary" in done.model.notes[-1]
    theirs = backbone({name: value.astype("int32") for name, value in INPUTS.items()})
    ours = load_model(out)(INPUTS)
    one, other = np.asarray(ours["pooled_output"]), np.asarray(theirs["pooled_output"])
    assert np.abs(one - other).max() / np.abs(one).max() < 1e-5

    # Their tokenizer keeps accents unless it is told otherwise.
    tokenizer = keras_nlp.models.BertTokenizer(vocabulary=PIECES, lowercase=True)
    tokenizer.save_to_preset(str(tmp_path / "bare"))
    done = convert(tmp_path / "bare", out, overwrite=True)
    assert done.model.tokenizer.settings["strip_accents"] is False
    assert any("keeps accents" in note for note in done.model.notes)

    (tmp_path / "bare" / "model.weights.h5").write_bytes(b"cut")
    assert "no whole KerasHub preset" in refusal(tmp_path / "bare", tmp_path / "no")
    config = tmp_path / "bare" / "config.json"
    config.write_text(config.read_text().replace("BertBackbone", "RobertaBackbone"))
    assert "RobertaBackbone" in refusal(tmp_path / "bare", tmp_path / "no")


def test_what_keras_hub_cannot_compute(models, out, tmp_path):
    tensors = tensors_of(models / "encoder")
    save_directory(tmp_path / "relu", replace(CONFIG, hidden_act="relu"), tensors)
    assert "'relu'" in refusal(tmp_path / "relu", out, "keras_hub")
    for name in ("weight", "bias"):
        del tensors[f"pooler.dense.{name}"]
    save_directory(tmp_path / "bald", CONFIG, tensors)
    assert "has a pooler" in refusal(tmp_path / "bald", out, "keras_hub")
    save_directory(
        tmp_path / "erf",
        replace(CONFIG, hidden_act="gelu", layer_norm_eps=1e-6, hidden_dropout_prob=0.3),
        tensors_of(models / "encoder"),
    )
    notes = " ".join(convert(tmp_path / "erf", out, "keras_hub").model.notes)
    assert "tanh approximation" in notes
    assert "1e-06" in notes
    assert "0.3" in notes


# Model Garden's checkpoints: tests/golden/model_garden was made by model_garden_peer.py.


@pytest.mark.parametrize("encoder", ["v2", "functional"])
def test_model_garden_computed_the_same(out, encoder):
    done = convert(GOLDEN / encoder, out)
    assert done.source.format == "model_garden"
    golden = np.load(GOLDEN / encoder / "outputs.npz")
    inputs = {
        "token_ids": golden["input_word_ids"],
        "segment_ids": golden["input_type_ids"],
        "padding_mask": golden["input_mask"],
    }
    pairs = []
    if encoder == "v2":
        positions = {"mask_positions": golden["masked_lm_positions"]}
        found = BertPreTrainer.from_directory(out)({**inputs, **positions})
        pairs = [(found[name], golden[name]) for name in ("mlm_logits", "nsp_logits")]
        assert any("pooler is the next sentence head's" in note for note in done.model.notes)
    found = BertEncoder.from_directory(out)(inputs)
    pairs.append((found["sequence_output"], golden["sequence_output"]))
    if encoder == "functional":
        pairs.append((found["pooled_output"], golden["encoder_pooled_output"]))
    for ours, theirs in pairs:
        assert np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max() < 1e-5
    config = BertConfig.from_json(out / "config.json")
    assert config == BertConfig(
        vocab_size=23,
        hidden_size=8,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=12,
        max_position_embeddings=10,
        hidden_act="gelu_new",
        extra=config.extra,
    )


def numbered_layers(model, folder):
    """The encoder's variables, as before its layers had named attributes."""
    convert(model, folder, "model_garden")
    reader = tf.train.load_checkpoint(str(folder / "bert_model.ckpt"))
    keys = [key for key in reader.get_variable_to_shape_map() if key.startswith("encoder/")]

    root: dict = {}
    for key in keys:
        *path, leaf = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").split("/")
        names = {
            "_embedding_layer": "0",
            "_position_embedding_layer": "1",
            "_type_embedding_layer": "2",
            "_embedding_norm_layer": "3",
            "_pooler_layer": "6",
        }
        if path[1] in names:
            path[1] = f"layer_with_weights-{names[path[1]]}"
        if path[1] == "_transformer_layers":
            path[1:3] = [f"layer_with_weights-{4 + int(path[2])}"]
        node = root
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = tf.Variable(reader.get_tensor(key))
    return root


def test_layers_known_by_number_alone(out, tmp_path, models):
    root = numbered_layers(models / "encoder", tmp_path / "new")
    (tmp_path / "old").mkdir()
    objects(root).write(str(tmp_path / "old" / "bert_model.ckpt"))
    convert(tmp_path / "old", out)
    assert_same_tensors(tensors_of(out), tensors_of(models / "encoder"))


def objects(node):
    """A graph of objects from dicts and variables."""
    if isinstance(node, tf.Variable):
        return node
    return tf.train.Checkpoint(**{name: objects(child) for name, child in node.items()})


@pytest.mark.parametrize("head", ["next_sentence", "sentence_prediction"])
def test_heads_of_model_garden_are_read_or_named(out, tmp_path, models, head):
    """A checkpoint of the model alone, as of `tf.train.Checkpoint(model=model)`."""
    network = numbered_layers(models / "encoder", tmp_path / "written")["encoder"]

    def dense(name, units):
        values = {"kernel": tf.ones((8, units)), "bias": tf.ones(units)}
        return {key: tf.Variable(x, name=f"{head}/{name}/{key}") for key, x in values.items()}

    heads = {"dense": dense("pooler_dense", 8), "out_proj": dense("logits", 2)}
    root = {
        "model": {"encoder_network": network, "classification_heads": {"0": heads}},
        "optimizer": {"iterations": tf.Variable(3.0, name="iter")},
    }
    (tmp_path / "model").mkdir()
    objects(root).write(str(tmp_path / "model" / "ckpt"))
    done = convert(tmp_path / "model", out)
    tensors = tensors_of(out)
    assert any("pre-LayerNorm" in note for note in done.model.notes)
    named = [note for note in done.model.notes if "Left out" in note]
    if head == "next_sentence":
        np.testing.assert_array_equal(tensors["cls.seq_relationship.weight"], np.ones((2, 8)))
        np.testing.assert_array_equal(tensors["pooler.dense.weight"], np.ones((8, 8)))
        assert not named
    else:
        assert_same_tensors(tensors, tensors_of(models / "encoder"))
        assert f"{head}/logits/bias, {head}/logits/kernel, {head}/pooler_dense/bias" in named[0]
        assert "iter" not in named[0]
    (tmp_path / "model" / "params.yaml").write_text("task: {model: {norm_first: true}}")
    assert "norm_first" in refusal(tmp_path / "model", tmp_path / "no")


def test_checkpoints_of_other_objects(out, tmp_path, models):
    tf.train.Checkpoint(step=tf.Variable(3.0)).write(str(tmp_path / "a" / "ckpt"))
    assert "no BERT encoder" in refusal(tmp_path / "a", out)
    convert(models / "encoder", tmp_path / "b", "model_garden")
    path = tmp_path / "b" / "bert_config.json"
    path.write_text(path.read_text().replace('heads": 2', 'heads": 4'))
    assert "num_attention_heads 4" in refusal(tmp_path / "b", out)


# What a format has no place for is kept where it can be, and named where it cannot.


def test_task_json(models, out, tmp_path):
    source = tmp_path / "tuned"
    shutil.copytree(models / "classifier", source)
    (source / "task.json").write_bytes(b'{"text_column": "sentence",\n "thresholds": {"no": 1}}')
    assert "task.json" in convert(source, out / "same").files
    assert (out / "same" / "task.json").read_bytes() == (source / "task.json").read_bytes()
    notes = convert(source, out / "preset", "keras_hub").model.notes
    assert any(note.startswith("task.json (text_column, thresholds) is left") for note in notes)
    convert(out / "preset", out / "back")  # KerasHub's own task.json is none of ours
    assert not (out / "back" / "task.json").exists()


def test_vectors_of_texts_are_made_as_before(models, out, tmp_path):
    source = tmp_path / "vectors"
    model = BertSentenceEncoder(CONFIG, pooling="cls", normalize=False)
    save_model(model, source, BertTokenizer(PIECES), max_length=6)
    length = {"max_seq_length": 6, "do_lower_case": True}
    (source / "sentence_bert_config.json").write_text(json.dumps(length))
    prompts = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    for _ in range(2):
        convert(source, out / "same", overwrite=True)
    assert read_sentence_files(out / "same") == read_sentence_files(source)
    for name, values in (
        ("sentence_bert_config", length),
        ("config_sentence_transformers", prompts),
    ):
        assert json.loads((out / "same" / f"{name}.json").read_text()) == values
    again = BertSentenceEncoder.from_directory(out / "same")
    assert (again.pooling, again.normalize) == ("cls", False)
    notes = " ".join(convert(source, out / "original", "tf1").model.notes)
    for value in ("(pooling 'cls', normalize False", "prompt 'q: '", "max_length 6) is left out"):
        assert value in notes


@pytest.mark.parametrize("to", ["tf1", "keras_hub", "model_garden"])
def test_pad_token_and_switches(models, out, tmp_path, to):
    _, model = read_model(models / "pretrainer")
    pieces = [*PIECES[1:5], "[PAD]", *PIECES[5:]]
    save_directory(tmp_path / "odd", replace(CONFIG, pad_token_id=4), model.tensors)
    BertTokenizer(pieces, strip_accents=False, tokenize_chinese_chars=False).save(tmp_path / "odd")
    notes = " ".join(convert(tmp_path / "odd", out / "there", to).model.notes)
    if to != "keras_hub":  # which has both switches
        assert "ignores strip_accents false" in notes
        assert "ignores tokenize_chinese_chars false" in notes
        assert "pads with id 0, this model with 4" in notes
    convert(out / "there", out / "back")
    assert BertConfig.from_json(out / "back" / "config.json").pad_token_id == 4
    if to == "keras_hub":
        (tmp_path / "odd" / "vocab.txt").unlink()
        notes = " ".join(convert(tmp_path / "odd", out / "bare", to).model.notes)
        assert "pad_token_id 4 is left out" in notes


def test_labels_for_the_original(models, out):
    notes = convert(models / "classifier", out, "tf1").model.notes
    assert any("in order: no, perhaps, yes" in note for note in notes)


# The output.


def test_the_output_is_whole_or_absent(models, out, monkeypatch):
    convert(models / "encoder", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match="is not empty"):
        convert(models / "pretrainer", out)

    def fail(*args, **kwargs):
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr("bert_tf.checkpoints.weights_files.save_file", fail)
        with pytest.raises(OSError, match="disk full"):
            convert(models / "pretrainer", out, overwrite=True)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in out.parent.iterdir()] == ["out"]
    convert(models / "pretrainer", out, overwrite=True)
    BertPreTrainer.from_directory(out)


def test_the_source_is_never_overwritten(models, tmp_path):
    source = tmp_path / "models" / "mine"
    shutil.copytree(models / "encoder", source)
    for output in (source, source.parent):
        with pytest.raises(InputError, match=r"(is|holds) the input"):
            convert(source, output, overwrite=True)
    load_model(source)
