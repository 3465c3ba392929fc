import inspect
import subprocess
import sys

import pytest

import bert_tf


def test_the_public_names_are_where_the_front_door_says():
    for name in bert_tf.__all__:
        assert getattr(bert_tf, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Bert'"):
        bert_tf.Bert  # noqa: B018


def test_names_that_others_build_on():
    names = {
        *("BertConfig", "BertTokenizer", "Packer", "load_model", "save_model"),
        *("BertEncoder", "BertPreTrainer", "BertClassifier", "BertRegressor"),
        *("AdamWeightDecay", "WarmupLinearDecay", "Predictor"),
    }
    assert names <= set(bert_tf.__all__)


def test_the_package_lists_its_public_names():
    assert set(bert_tf.__all__) <= set(dir(bert_tf))


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


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, bert_tf; sys.exit(bool({'tensorflow', 'keras', 'numpy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
