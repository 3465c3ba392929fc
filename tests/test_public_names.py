import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cases import for_each

import bert_tf
from bert_tf.keras_classes import NAMES


def test_the_public_names_are_where_the_front_door_says():
    for name in bert_tf.__all__:
        assert getattr(bert_tf, name) is not None and name in dir(bert_tf)
    for home, name in NAMES.values():  # a registered model is public
        if home.startswith(("bert_tf.models.", "bert_tf.text.")):
            assert bert_tf._HOMES[name] == home
    with pytest.raises(AttributeError, match="no attribute 'Bert'"):
        bert_tf.Bert  # noqa: B018


def test_from_directory_names_its_options():
    from_directory, load_model = (
        inspect.signature(function).parameters
        for function in (bert_tf.BertClassifier.from_directory, bert_tf.load_model)
    )
    assert "options" not in from_directory
    for name in load_model.keys() - {"model_class"}:
        assert from_directory[name].default == load_model[name].default
        assert f"{name}:" in bert_tf.BertClassifier.from_directory.__doc__


@pytest.mark.slow
@for_each("imports", "bert_tf, keras", "keras, bert_tf")
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
