"""What a trained model is saved as: Keras files, model directories, exports."""

import json
import os
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
from rounding import half_rounding, rounded, rounding
from small_data import DATA, LABELS, TEXTS

from bert_tf import (
    BertClassifier,
    BertEncoder,
    BertPreTrainer,
    BertSentenceEncoder,
    Predictor,
    save_model,
)
from bert_tf.cli import main
from bert_tf.models.language_model import BertMaskedLanguageModel
from bert_tf.serving.predictor import answer_rows

# Answers of each saved model to its own inputs, as lists of numbers and strings.
LOAD = """
import json, pickle, sys
from pathlib import Path
import bert_tf, keras
for name, x in json.loads(Path(sys.argv[1], "inputs.json").read_text()).items():
    model = keras.saving.load_model(Path(sys.argv[1], name))
    model.run_eagerly = "BertClassifier" not in name  # tracing each takes longer than all the rest
    x = tuple(x["columns"]) if "columns" in x else x["list"]
    found = model.predict(x, verbose=0)
    Path(sys.argv[1], name + ".found").write_bytes(pickle.dumps(found))
"""


def numbers(found):
    """Outputs to compare, one by one."""
    leaves = keras.tree.flatten(found)
    return [np.asarray(x) if isinstance(x, str) else np.asarray(x, "float32") for x in leaves]


@pytest.mark.slow
def test_keras_files_in_a_fresh_process(opened, tmp_path):
    """Raw strings in, equal outputs, for every model; one in bfloat16, too.

    A pre-trainer answers as a masked language model does.
    """
    inputs, expected = {}, {}
    for model_class in [each for each in DATA if each is not BertPreTrainer]:
        for dtype in ("float32", "mixed_bfloat16")[: 1 + (model_class is BertClassifier)]:
            model = opened(model_class, dtype=dtype)
            x = DATA[model_class][1]
            if model_class is BertMaskedLanguageModel:
                x = ["a [MASK] film", "the bad [MASK] is [MASK]"]
            name = f"{model_class.__name__}-{dtype}.keras"
            model.save(tmp_path / name)
            inputs[name] = {"columns": x} if isinstance(x, tuple) else {"list": x}
            expected[name] = model.predict(x, verbose=0)
    (tmp_path / "inputs.json").write_text(json.dumps(inputs))
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, outputs in expected.items():
        found = pickle.loads((tmp_path / f"{name}.found").read_bytes())
        for one, other in zip(numbers(outputs), numbers(found), strict=True):
            # Equal but for rounding: a process that ran TensorFlow before it shared the cores
            # computes whole batches, others halves.
            if one.dtype.kind == "f":
                is_half = "bfloat16" in name
                share = half_rounding(24, "bfloat16") if is_half else rounding(24, 32)
                atol = share * np.abs(other).max(initial=0)
                np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=name)
            else:
                np.testing.assert_array_equal(one, other, err_msg=name)


def test_a_model_directory_is_that_of_the_commands(opened, preset, tmp_path):
    """Its bytes are `save_model`'s, and a task.json beside them; all commands read it."""
    model = opened()
    model.fit(TEXTS, LABELS, verbose=0)
    model.save_to_preset(tmp_path / "own")
    save_model(model, tmp_path / "plain", model.preprocessor.tokenizer)
    plain = {path.name: path.read_bytes() for path in (tmp_path / "plain").iterdir()}
    own = {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()}
    assert own.keys() - plain.keys() == {"task.json"}
    assert {name: own[name] for name in plain} == plain
    assert json.loads(own["task.json"])["task"] == "classification"
    reopened = BertClassifier.from_preset(tmp_path / "own")
    assert reopened.labels == ["bad", "good"]
    assert reopened.preprocessor.task == model.preprocessor.task
    one, other = reopened.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0)
    np.testing.assert_allclose(one, other, rtol=0, atol=rounding(24, 32))  # eagerly, in a graph


@pytest.mark.slow
def test_an_export_is_that_of_the_commands(opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = opened()
    folder = model.export("saved_models/review/1")
    assert folder.resolve() == (tmp_path / "saved_models/review/1").resolve()
    answers = rounded(model.classify(TEXTS), 24, 32)
    predictor = Predictor(tmp_path / "saved_models/review")
    assert answer_rows(predictor.signature(), {"text": TEXTS}, 32) == answers
    model.save_to_preset("models/review")
    assert main(["export", "--model", "models/review", "--name", "again"]) == 0
    again = Predictor(tmp_path / "saved_models/again")
    assert answer_rows(again.signature(), {"text": TEXTS}, 32) == answers
    assert sorted(again.signatures) == sorted(predictor.signatures)


@pytest.mark.slow
def test_a_pre_trainers_export_guesses_words(opened, tmp_path):
    model = opened(BertPreTrainer)
    texts = ["a [MASK] film", "the bad [MASK] is [MASK]"]
    model.export(tmp_path / "words/1")
    served = answer_rows(Predictor(tmp_path / "words").signature(), {"text": texts}, 32)
    found = [[mask["words"][0] for mask in row["masks"]] for row in served]
    assert found == model.predict(texts)


@pytest.mark.slow
def test_kerass_own_exports(opened, tmp_path):
    """Of token ids: of a model without a preprocessor, or where the format is named."""
    opened(preprocessor=None).export(tmp_path / "one", verbose=False)
    opened().export(tmp_path / "other", format="tf_saved_model", verbose=False)
    assert (tmp_path / "one/saved_model.pb").is_file()
    assert (tmp_path / "other/saved_model.pb").is_file()


@pytest.mark.slow
def test_a_task_of_ones_own(preset, tmp_path):
    """A file keeps where its task is, and holds no code."""
    (tmp_path / "mine.py").write_text(
        "from bert_tf.tasks.kinds.classification import Classification\n"
        "from bert_tf.tasks.task import Task\n"
        "TASK = Task(name='mine', kind=Classification(), text='review', max_length=10)\n"
    )
    task = str(tmp_path / "mine.py")
    model = BertClassifier.from_preset(preset, labels=["bad", "good"], task=task, seed=1)
    assert model.preprocessor.max_length == 10
    found = model.predict({"review": TEXTS}, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.preprocessor.task == model.preprocessor.task
    np.testing.assert_array_equal(loaded.predict({"review": TEXTS}, verbose=0), found)


@pytest.mark.slow
def test_the_jax_backend_trains_packed_inputs(preset):
    """Models are compiled there, too: with Keras' AdamW."""
    code = (
        "import sys, numpy as np, keras, bert_tf\n"
        "model = bert_tf.BertClassifier.from_directory(\n"
        "    sys.argv[1], labels=['a', 'b'], allow_new_head=True, seed=1)\n"
        "ids = {n: np.ones((8, 6), 'int32') for n in model.input}\n"
        "history = model.fit(ids, np.arange(8) % 2, batch_size=4, verbose=0).history\n"
        "assert np.isfinite(history['loss'][0]) and 'accuracy' in history\n"
        "assert type(model.optimizer).__name__ == 'AdamW'\n"
        "assert model.predict(ids, verbose=0).shape == (8, 2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(preset)],
        capture_output=True,
        text=True,
        env={**os.environ, "KERAS_BACKEND": "jax"},
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_vectors_of_sentences_are_an_array(preset):
    model = BertSentenceEncoder.from_preset(preset, seed=1)
    found = model.predict(TEXTS[:2])
    assert found.shape == (2, 16)
    np.testing.assert_array_equal(found, [row["vector"] for row in model.embed(TEXTS[:2])])


def test_embeddings(opened):
    encoder = opened(BertEncoder)
    rows = encoder.embed(TEXTS[:2])
    assert len(rows[0]["mean"]) == 16
    np.testing.assert_allclose(
        [row["pooled"] for row in rows],
        encoder.predict(TEXTS[:2], verbose=0)["pooled_output"],
        rtol=0,
        atol=rounding(24, 32),
    )
