import copy
from dataclasses import replace

import keras
import numpy as np
import pytest
from cases import for_each
from keras.src.models.cloning import clone_model
from tiny import tiny_config

from bert_tf import BertClassifier, BertEncoder, BertPreTrainer
from bert_tf.networks import TransformerBlock
from bert_tf.paper.encoders import TwoEncoders

CONFIG = tiny_config(11, "2x8x2", max_position_embeddings=6)
IDS = {n: np.ones((2, 4), "int32") for n in ("token_ids", "segment_ids", "padding_mask")}


def saved(model, tmp_path):
    model.save(tmp_path / "model.keras")
    return keras.saving.load_model(tmp_path / "model.keras")


def classifier():
    return BertClassifier(CONFIG, num_classes=2, seed=1)


def first_layers_frozen():
    model = classifier()
    model.encoder.freeze_layers(1)
    return model


def one_block_free():
    model = classifier()
    model.encoder.trainable = False
    model.encoder.blocks[1].trainable = True
    return model


def one_layer_free_of_all():
    model = classifier()
    model.trainable = False
    model.encoder.blocks[1].feed_forward.trainable = True
    return model


def table_frozen_that_the_head_shares():
    model = BertPreTrainer(CONFIG, seed=1)
    model.encoder.embeddings.trainable = False
    return model


def one_of_two_towers_frozen():
    config = replace(CONFIG, attention_direction="left_to_right+right_to_left")
    model = BertClassifier(TwoEncoders(config, seed=1), num_classes=2, seed=1)
    model.encoder.towers()[1].trainable = False
    return model


def in_a_functional_model():
    encoder = BertEncoder(CONFIG, seed=1)
    encoder.freeze_layers(1)
    inputs = BertEncoder.symbolic_inputs()
    return keras.Model(inputs, keras.layers.Dense(2)(encoder(inputs)["pooled_output"]))


def block_in_a_functional_model():
    states = keras.Input((4, 8))
    block = TransformerBlock(CONFIG, trainable=False)
    model = keras.Model(states, keras.layers.Dense(2)(block(states)))
    assert len(model.trainable_variables) == 2  # those of the Dense
    block.attention.trainable = True
    block.rematerialize = True
    return model


def with_adapters():
    model = classifier()
    model.encoder.trainable = False
    for block in model.encoder.blocks:
        block.attention.query.trainable = True
        block.attention.query.enable_lora(2, lora_alpha=3)
    return model


MODELS = (
    first_layers_frozen,
    one_block_free,
    one_layer_free_of_all,
    table_frozen_that_the_head_shares,
    one_of_two_towers_frozen,
    in_a_functional_model,
    block_in_a_functional_model,
    with_adapters,
)


def described(model):
    layers = model._flatten_layers()
    return {
        "trainable": [v.path for v in model.trainable_variables],
        "layers": [(layer.name, layer.trainable) for layer in layers if layer.weights],
        "switches": [(layer.name, getattr(layer, "rematerialize", None)) for layer in layers],
    }


@for_each("make", *MODELS)
def test_configs_keep_what_was_set(make):
    model = make()
    assert described(type(model).from_config(model.get_config())) == described(model)


def test_files_and_copies_keep_what_was_set(tmp_path):
    """As configs do, which they are made of."""
    model = one_block_free()
    for again in (saved(model, tmp_path), copy.deepcopy(model)):
        assert described(again) == described(model)
    assert "layers" not in classifier().get_config()  # what is not set is not in it


@for_each("make", first_layers_frozen, one_block_free, in_a_functional_model)
def test_clones_keep_what_was_set(make):
    """They are of Keras' own class, so that the model's own flag is not among them."""
    model = make()
    found, expected = (described(each)["trainable"] for each in (clone_model(model), model))
    assert found == expected


def test_a_reloaded_model_trains_on_with_its_optimizer(tmp_path):
    model = with_adapters()
    model.compile(run_eagerly=True)
    model.train_on_batch(IDS, np.array([0, 1]))
    loaded = saved(model, tmp_path)
    for one, other in zip(loaded.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(one, other)
    loaded.run_eagerly = True
    before = [v.numpy() for v in loaded.non_trainable_weights]
    loaded.train_on_batch(IDS, np.array([0, 1]))
    for kept, variable in zip(before, loaded.non_trainable_weights, strict=True):
        np.testing.assert_array_equal(variable, kept)


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")
def test_dtype_policies_of_layers_are_saved(tmp_path):
    model = BertClassifier(replace(CONFIG, num_hidden_layers=1), num_classes=2, seed=1)
    model.quantize("int8")
    model.head.dtype_policy = "mixed_bfloat16"
    loaded = saved(model, tmp_path)
    policies = [layer.dtype_policy for layer in model._flatten_layers() if layer.weights]
    assert [x.dtype_policy for x in loaded._flatten_layers() if x.weights] == policies
    np.testing.assert_array_equal(loaded(IDS), model(IDS))
