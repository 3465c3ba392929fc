"""LoRA: what is trained, its gradients on every kernel, saved models, and resumed runs."""

import contextlib
import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused, slow
from kernel_models import CONFIG, LEFT_TO_RIGHT, batch, by_keras_ops, randomize
from rounding import assert_equal_but_for_rounding, rounding
from safetensors.numpy import load_file
from small_runs import finetuning
from stored_models import run_peer  # tests/checkpoints/stored_models.py

from bert_tf import (
    AdamWeightDecay,
    BertClassifier,
    BertSentenceEncoder,
    BertTagger,
    BertTokenizer,
    load_model,
    save_model,
)
from bert_tf.checkpoints.lora_adapter import adapter_tensors, write_adapter
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.training.resuming import TrainingState
from bert_tf.training.trainer import Trainer

PEER = Path(__file__).with_name("peft_peer.py")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
ADAPTED = {f"{name}/lora_kernel_{x}" for name in ("query", "value") for x in "ab"}
HEADS = {f"{name}/dense/{x}" for name in ("pooler", "classifier") for x in ("kernel", "bias")}

DISTILBERT = {"type_vocab_size": 0, "layer_norm_eps": 1e-12, "extra": {"model_type": "distilbert"}}


def adapted(seed=0, dtype="float32", rematerialize=False, **config):
    """A classifier whose adapters already add to its kernels."""
    model = BertClassifier(replace(CONFIG, **config), 3, seed=seed, dtype=dtype)
    model.encoder.add_adapters(2)
    model.encoder.rematerialize = rematerialize
    return randomize(model)


def train(trainer, steps=1):
    inputs = {name: tf.constant(x, tf.int32) for name, x in batch().items()}
    data = tf.data.Dataset.from_tensors((inputs, tf.constant([0, 1, 2, 1])))
    free = dict.fromkeys(inputs, tf.TensorSpec([None, None], tf.int32))
    signature = (free, data.element_spec[1])
    data = tf.data.Dataset.from_generator(data.repeat(steps).__iter__, output_signature=signature)
    iterator = trainer.iterate(data)
    for _ in range(steps):
        trainer.train(iterator)


def changes(plain=False, **options):
    """The change of each weight by a step of plain gradient descent, by path."""
    model = adapted(**options)
    before = {v.path: v.numpy() for v in model.weights}
    descent = keras.optimizers.SGD(1.0)
    trainer = Trainer(model, descent, loss=cross_entropy, gradient_accumulation_steps=2)
    with by_keras_ops(model) if plain else contextlib.nullcontext():
        train(trainer)
    return {v.path: v.numpy() - before[v.path] for v in model.weights}


@for_each("rematerialize", False, slow(True))
def test_gradients_reach_adapters_and_heads_alone(rematerialize):
    found = changes(rematerialize=rematerialize)
    trained = {path for path, change in found.items() if np.any(change)}
    layers = {f"layer_{n}/attention/{name}" for n in range(2) for name in ADAPTED}
    assert {path for path in trained if "lora" in path} == layers
    others = {"/".join(path.split("/")[-3:]) for path in trained if "lora" not in path}
    assert others == HEADS
    for path, wanted in changes(plain=True).items():
        # Two blocks and their gradients, and a head.
        assert_equal_but_for_rounding(found[path], wanted, 100, 16)


@for_each("dtype", "float32", "mixed_bfloat16")
def test_a_saved_model_has_them_merged(tmp_path, dtype):
    model = adapted(dtype=dtype)
    save_model(model, tmp_path, BertTokenizer(PIECES))
    query = model.encoder.blocks[1].attention.query
    merged = query._kernel.numpy() + query.lora_kernel_a.numpy() @ query.lora_kernel_b.numpy()
    again = load_model(tmp_path)
    found = again.encoder.blocks[1].attention.query
    # A sum of three terms: not of bfloat16's 8 bits.
    np.testing.assert_allclose(found.kernel, merged, rtol=0, atol=rounding(2, 3, 4))
    assert not found.lora_enabled
    if dtype == "float32":
        assert_equal_but_for_rounding(again(batch()), model(batch()), 60, 16)


def with_adapter(base, folder):
    """A model's tensors with an adapter as PEFT merges it: W + B A alpha / r, and whole modules."""
    config = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors = {name.removeprefix("base_model.model."): x for name, x in tensors.items()}
    merged = dict(base)
    for name, a in tensors.items():
        layer, _, part = name.partition(".lora_")
        if part == "A.weight":
            assert layer.rpartition(".")[2] in config["target_modules"]
            factor = config["lora_alpha"] / config["r"]
            change = factor * tensors[f"{layer}.lora_B.weight"] @ a
            merged[f"{layer}.weight"] = merged[f"{layer}.weight"] + change
        elif not part:
            assert any(f".{module}." in f".{name}" for module in config["modules_to_save"])
            merged[name] = tensors[name]
    return merged


def made_with_adapter(folder, classes, config):
    """A model, saved in a folder with what it is made of: `base` and `adapter`."""
    labels = {} if classes is BertSentenceEncoder else {"labels": ["x", "y", "z"]}
    model = classes(replace(CONFIG, **config), seed=0, **labels)
    save_model(model, folder / "base", BertTokenizer(PIECES))
    model.encoder.add_adapters(2)
    for variable in model.trainable_variables:
        variable.assign(np.random.default_rng(1).normal(size=variable.shape))
    save_model(model, folder, BertTokenizer(PIECES))
    write_adapter(model, folder / "adapter", "org/base")


@for_each(
    "classes config modules",
    (BertClassifier, {}, ["classifier", "pooler"]),
    (BertTagger, {}, ["classifier"]),
    (BertSentenceEncoder, {}, []),
    (BertClassifier, DISTILBERT, ["classifier", "pre_classifier"]),
)
def test_an_adapter_beside_the_model_merges_into_it(tmp_path, classes, config, modules):
    made_with_adapter(tmp_path, classes, config)
    base, wanted = (load_file(x / "model.safetensors") for x in (tmp_path / "base", tmp_path))
    found = with_adapter(base, tmp_path / "adapter")
    assert found.keys() == wanted.keys()
    unused = "pooler." if classes is BertSentenceEncoder else None
    for name, tensor in wanted.items():
        if unused is None or not name.startswith(unused):
            # A sum of three terms of size 1.
            np.testing.assert_allclose(found[name], tensor, rtol=0, atol=rounding(2, 3, 4))
    stored = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert stored["modules_to_save"] == modules
    assert stored["base_model_name_or_path"] == "org/base"
    load_model(tmp_path)  # which the folder beside it does not disturb
    size = sum(x.stat().st_size for x in (tmp_path / "adapter").iterdir())
    assert size < (tmp_path / "model.safetensors").stat().st_size


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
@for_each(
    "classes theirs config",
    (BertClassifier, "AutoModelForSequenceClassification", {}),
    (BertTagger, "AutoModelForTokenClassification", {}),
    (BertSentenceEncoder, "AutoModel", {}),
    (BertClassifier, "AutoModelForSequenceClassification", DISTILBERT),
)
def test_peft_reads_adapters(tmp_path, classes, theirs, config):
    made_with_adapter(tmp_path, classes, config)
    ids = np.array([[2, 5, 6, 7, 3], [2, 8, 5, 9, 3]])
    np.save(tmp_path / "ids.npy", ids)
    names = [tmp_path / name for name in ("base", "adapter", "ids.npy", "out.npz")]
    outputs = run_peer("hugging-face", PEER, theirs, *names)["outputs"]
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids // ids}
    found = load_model(tmp_path)(inputs)
    found = found["sequence_output"] if isinstance(found, dict) else found
    np.testing.assert_allclose(found, outputs, rtol=0, atol=1e-5)


def test_what_peft_has_no_place_for_is_refused():
    for config, dense in ((CONFIG, keras.layers.Dense(4)), (LEFT_TO_RIGHT, None)):
        model = BertSentenceEncoder(config, dense=dense)
        model.encoder.add_adapters(2)
        refused("leave --save_adapter out", adapter_tensors, model)


def test_a_resumed_run_ends_equal(tmp_path):
    def new(seed):
        settings = {"hidden_dropout_prob": 0.1}
        return Trainer(adapted(seed, **settings), AdamWeightDecay(1e-2), loss=cross_entropy)

    trainer = new(0)
    slots = sum(int(np.prod(v.shape)) for v in trainer.optimizer.variables[2:])
    assert slots == 2 * sum(int(np.prod(v.shape)) for v in trainer.trainable_variables)
    assert slots < trainer.model.count_params()
    train(trainer, 2)
    TrainingState(trainer, tmp_path, settings={}).save()
    train(trainer, 2)
    resumed = new(1)
    assert TrainingState(resumed, tmp_path, settings={}).restore()
    train(resumed, 2)
    np.testing.assert_equal(resumed.model.get_weights(), trainer.model.get_weights())


@for_each(
    "options message",
    ({"from_scratch": True}, "leave --from_scratch out"),
    ({"freeze_layers": 1}, "leave --freeze_layers out"),
    ({"features_only": "last"}, "leave --lora_rank out"),
    ({"save_adapter": True, "lora_rank": None}, "needs --lora_rank"),
    ({"save_adapter": True, "calibrate": True}, "cannot be combined"),
)
def test_options_without_a_frozen_encoder_are_refused(tmp_path, options, message):
    refused(message, finetuning, tmp_path, **{"lora_rank": 2, **options})


@pytest.mark.slow
def test_a_run_writes_a_usual_model(tmp_path):
    save_model(adapted(), tmp_path / "encoder", BertTokenizer(PIECES))
    rows = "text\tlabel\n" + "a b\tx\nc d\ty\n" * 8
    for name in ("train.tsv", "validation.tsv"):
        (tmp_path / name).write_text(rows)
    options = finetuning(tmp_path, lora_rank=2, save_adapter=True, epochs=1, learning_rate=None)
    result = run_finetuning(options)
    assert result.evaluation is not None
    before, after = (load_file(tmp_path / x / "model.safetensors") for x in ("encoder", "run/best"))
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    names = (f"{n}.attention.self.{x}" for n in (0, 1) for x in ("query", "value"))
    adapters = {f"bert.encoder.layer.{name}.weight" for name in names}
    heads = {f"{x}.{y}" for x in ("classifier", "bert.pooler.dense") for y in ("weight", "bias")}
    assert changed - heads == adapters
    found = with_adapter(before, tmp_path / "run" / "best" / "adapter")
    for name, tensor in after.items():
        np.testing.assert_allclose(found[name], tensor, rtol=0, atol=rounding(2, 3, 4))
    assert "learning_rate: 0.0005" in (tmp_path / "run" / "config.yaml").read_text()
