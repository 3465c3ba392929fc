import importlib
import inspect
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import tiny_config

import bert_tf
from bert_tf.keras_classes import NAMES


def test_the_public_names_are_where_the_front_door_says():
    for name in bert_tf.__all__:
        assert getattr(bert_tf, name) is not None and name in dir(bert_tf)
    with pytest.raises(AttributeError, match="no attribute 'Bert'"):
        bert_tf.Bert  # noqa: B018


def test_from_directory_names_its_options():
    """As `load_model` does, with the same defaults."""
    from_directory, load_model = (
        inspect.signature(function).parameters
        for function in (bert_tf.BertClassifier.from_directory, bert_tf.load_model)
    )
    assert "options" not in from_directory
    for name in load_model.keys() - {"model_class"}:
        assert from_directory[name].default == load_model[name].default
        assert f"{name}:" in bert_tf.BertClassifier.from_directory.__doc__


@pytest.mark.slow
@pytest.mark.parametrize("imports", ["bert_tf, keras", "keras, bert_tf"])
def test_keras_finds_a_class_after_importing_the_package_alone(imports):
    code = (
        f"import {imports}\n"
        "config = {'class_name': 'Pooler', 'registered_name': 'bert_tf>Pooler',\n"
        "          'module': 'bert_tf.networks.heads',\n"
        "          'config': {'config': bert_tf.BertConfig().to_dict()}}\n"
        "print(type(keras.saving.deserialize_keras_object(config)).__module__)\n"
    )
    env = {**os.environ, "KERAS_BACKEND": "numpy"}  # starts sooner
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "bert_tf.networks.heads\n", done.stderr


def test_every_registered_class_has_a_stand_in():
    import keras

    for home, _ in NAMES.values():
        importlib.import_module(home)
    found = keras.saving.get_custom_objects()
    assert {name: (found[name].__module__, found[name].__name__) for name in NAMES} == NAMES
    text = "".join(path.read_text() for path in Path(bert_tf.__file__).parent.rglob("*.py"))
    assert text.count("@keras.saving.register_keras_serializable(") == len(NAMES)


@pytest.mark.slow
def test_saved_models_load_in_a_fresh_process(tmp_path):
    """With their optimizers and schedules."""
    import numpy as np

    from bert_tf.models.language_model import BertMaskedLanguageModel
    from bert_tf.paper.encoders import LstmEncoder
    from bert_tf.training import schedule
    from bert_tf.training.optimizer import Lamb

    config = tiny_config(9, "1x4x2", max_position_embeddings=8)
    models = [
        bert_tf.BertEncoder(config),
        bert_tf.BertPreTrainer(config),
        BertMaskedLanguageModel(config),
        bert_tf.BertClassifier(config, 2),
        bert_tf.BertTagger(config, 3),
        bert_tf.BertRegressor(config),
        bert_tf.BertMultiLabelClassifier(config, 2),
        bert_tf.BertSpanClassifier(config),
        bert_tf.BertChooser(config),
        LstmEncoder(config),
        bert_tf.BertTagger(replace(config, feature_lstm_layers=1), 3),
    ]
    for number, model in enumerate(models):
        make = [bert_tf.AdamWeightDecay, Lamb][number % 2]
        names = ["WarmupLinearDecay", "WarmupCosineDecay", "WarmupConstant", "WarmupStableDecay"]
        rate = getattr(schedule, names[number % 4])(1e-3, 1, 5)
        model.compile(make(rate))
        model.optimizer.build(model.trainable_variables)
        model.save(tmp_path / f"{number:02}.keras")
    code = (
        "import bert_tf, keras, sys, numpy\n"
        "from pathlib import Path\n"
        "for path in sorted(Path(sys.argv[1]).glob('*.keras')):\n"
        "    model = keras.saving.load_model(path)\n"
        "    rate = model.optimizer._learning_rate\n"
        "    sums = [float(numpy.sum(w)) for w in model.get_weights()]\n"
        "    print(type(model).__name__, type(model.optimizer).__name__, type(rate).__name__, sums)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True
    )
    expected = [
        f"{type(model).__name__} {type(model.optimizer).__name__} "
        f"{type(model.optimizer._learning_rate).__name__} "
        f"{[float(np.sum(w)) for w in model.get_weights()]}"
        for model in models
    ]
    assert done.stdout.splitlines() == expected
