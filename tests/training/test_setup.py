"""The options of training commands become what they say."""

import numpy as np
import pytest
import tensorflow as tf
from tiny import tiny_config
from watchers import Lines

from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.errors import InputError
from bert_tf.models.task_models import BertClassifier
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.run import Run
from bert_tf.training.setup import _layer_factors, prepare


def classifier(dropout=0.1):
    config = tiny_config(
        20, "2x8x2", intermediate_size=8, max_position_embeddings=8, dropout=dropout
    )
    return BertClassifier(config, num_classes=2, seed=1)


def test_layer_decay_lowers_the_learning_rate_layer_by_layer():
    """As ELECTRA's: d for the last layer, once more for each below, and for the embeddings."""
    model = classifier()
    optimizer = AdamWeightDecay(
        0.1, weight_decay_rate=0.0, clip_norm=None, learning_rate_factors=_layer_factors(2, 0.5)
    )
    before = {v.path: v.numpy() for v in model.trainable_variables}
    optimizer.apply(
        [tf.ones(v.shape) for v in model.trainable_variables], model.trainable_variables
    )
    step = 0.1 * 0.1 / np.sqrt(0.001)  # of the first update, without bias correction
    for variable in model.trainable_variables:
        part = variable.path.split("/")[0]
        factor = {"embeddings": 0.125, "layer_0": 0.25, "layer_1": 0.5}.get(part, 1.0)
        moved = before[variable.path] - variable.numpy()
        np.testing.assert_allclose(moved, factor * step, rtol=1e-3, err_msg=variable.path)
    assert {"pooler", "classifier"} & {path.split("/")[0] for path in before}


def test_no_layer_decay_leaves_every_rate_alone():
    assert _layer_factors(12, 1.0) == {}
    twin = AdamWeightDecay.from_config(
        AdamWeightDecay(learning_rate_factors={"layer_0/": 0.5}).get_config()
    )
    assert twin.learning_rate_factors == {"layer_0/": 0.5}
    with pytest.raises(ValueError, match="weight_decay"):
        AdamWeightDecay(weight_decay=0.1)


def resume(folder, *, dropout=0.1, settings=None, begin=False, **values):
    """Begins a run or resumes it, without a step; returns the settings of its checkpoint."""
    shards = {"shards": "s", "long_shards": "l"}
    given = {"model": "m", **shards, "output": str(folder), "strategy": "one", **values}
    options = PretrainingOptions(**given)
    with Run(options, Lines()) as run:
        prepare(
            run,
            classifier(dropout),
            options,
            learning_rate=0.1,
            total_steps=9,
            warmup_steps=0,
            loss=cross_entropy,
            metrics={},
            settings=settings or {},
            examples=list,
            values={},
            score="best_accuracy",
            fixed_shapes=False,
        )
        run.open()
        if begin:
            run.state.save()
        return run.state.settings


@pytest.mark.parametrize("dropout", [0.1, 0.0])
def test_a_run_is_resumed_as_its_dropout_was_drawn(tmp_path, dropout):
    """The parts of a batch draw for themselves; without dropout, they only round otherwise."""
    resume(tmp_path, dropout=dropout, begin=True)
    for name, value in (
        ("rematerialize", True),
        ("gradient_accumulation_steps", 2),
        ("jit_compile", True),
        ("long_gradient_accumulation_steps", 2),
    ):
        if dropout:
            shown = name.replace("long_", "long.")
            with pytest.raises(InputError, match=rf"{shown} was .*, is now {value}.* --override"):
                resume(tmp_path, dropout=dropout, **{name: value})
        resume(tmp_path, dropout=dropout, override=bool(dropout), **{name: value})


def test_a_run_is_resumed_with_the_same_data_order_and_model(tmp_path, monkeypatch):
    settings = resume(tmp_path, settings={"model_content": "abc"}, begin=True)
    resume(tmp_path, settings={"model_content": "abc"}, model="moved")
    with pytest.raises(InputError, match="model_content was 'abc', is now 'def'"):
        resume(tmp_path, settings={"model_content": "def"})
    monkeypatch.setattr("bert_tf.training.setup.TRAJECTORY", settings["version"] + 1)
    with pytest.raises(InputError, match="version was 1, is now 2"):
        resume(tmp_path, settings={"model_content": "abc"})
    monkeypatch.undo()
    monkeypatch.setattr("bert_tf.training.setup.reader_count", lambda strategy: 2)
    with pytest.raises(InputError, match="workers was 1, is now 2"):
        resume(tmp_path, settings={"model_content": "abc"})


def test_a_run_of_an_earlier_version_is_resumed(tmp_path, monkeypatch):
    """It has the path of the model, and none of what came later."""
    with monkeypatch.context() as patch:
        old = {"model": "../m", "gradient_accumulation_steps": 1}
        patch.setattr("bert_tf.training.setup._data_order", lambda *arguments: old)
        assert "version" not in resume(tmp_path, begin=True)
    resume(tmp_path, settings={"model_content": "abc"}, rematerialize=True)
    with pytest.raises(InputError, match="gradient_accumulation_steps was 1, is now 2"):
        resume(tmp_path, gradient_accumulation_steps=2)
    with pytest.raises(InputError, match=r"weight_decay was 0.01, is now 0.5"):
        resume(tmp_path, weight_decay=0.5)


@pytest.mark.parametrize("other", [{"deterministic": True}, {"strategy": "tpu"}])
def test_what_xla_is_not_combined_with(other):
    options = {"output": "run", "model": "bert", "train": "x.tsv"}
    with pytest.raises(InputError, match="--jit_compile"):
        FinetuningOptions(**options, **other, jit_compile=True)
    assert FinetuningOptions(**options, **other).jit_compile == "auto"
