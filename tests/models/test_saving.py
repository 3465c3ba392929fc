import json

import keras
import numpy as np
import pytest
from cases import for_each, slow
from preloaded import run_code
from rounding import rounded, rounding
from small_data import DATA, LABELS, TEXTS

import bert_tf
from bert_tf.cli import main
from bert_tf.serving.predictor import answer_rows
from bert_tf.tasks.signatures import DEFAULT

# The answers of a saved model to its own inputs, with nothing but Keras and the package imported.
LOAD = """
import json, sys
import bert_tf, keras
model = keras.saving.load_model(sys.argv[1])
print(json.dumps(model.classify(json.loads(sys.argv[2]))))
"""


@pytest.mark.slow
def test_a_keras_file_in_a_fresh_process(opened, tmp_path):
    model = opened()
    model.save(tmp_path / "model.keras")
    done = run_code(LOAD, [str(tmp_path / "model.keras"), json.dumps(TEXTS)], check=True)
    # A process that ran TensorFlow before it shared the cores computes whole batches.
    assert json.loads(done.stdout.splitlines()[-1]) == rounded(model.classify(TEXTS), 24, 32)


@for_each("model_class", *[x if x is bert_tf.BertTagger else slow(x) for x in DATA])
def test_keras_files_answer_raw_text(opened, model_class, tmp_path):
    model, x = opened(model_class), DATA[model_class][1]
    if "mask_positions" in model.input:
        x = ["a [MASK] film", "the bad [MASK] is [MASK]"]
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    model.run_eagerly = loaded.run_eagerly = True  # tracing takes longer
    outputs = (each.predict(x, verbose=0) for each in (model, loaded))
    keras.tree.map_structure(np.testing.assert_array_equal, *outputs)


def test_a_model_directory_is_that_of_the_commands(opened, preset, tmp_path):
    """Its bytes are `save_model`'s, and a task.json beside them; all commands read it."""
    model = opened()
    model.fit(TEXTS, LABELS, verbose=0)
    model.save_to_preset(tmp_path / "own")
    bert_tf.save_model(model, tmp_path / "plain", model.preprocessor.tokenizer)
    plain = {path.name: path.read_bytes() for path in (tmp_path / "plain").iterdir()}
    own = {path.name: path.read_bytes() for path in (tmp_path / "own").iterdir()}
    assert own.keys() - plain.keys() == {"task.json"}
    assert {name: own[name] for name in plain} == plain
    assert json.loads(own["task.json"])["task"] == "classification"
    reopened = bert_tf.BertClassifier.from_preset(tmp_path / "own")
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
    predictor = bert_tf.Predictor(tmp_path / "saved_models/review")
    assert answer_rows(predictor.signature(), {"text": TEXTS}, 32) == answers
    model.save_to_preset("models/review")
    assert main(["export", "--model", "models/review", "--name", "again"]) == 0
    again = bert_tf.Predictor(tmp_path / "saved_models/again")
    assert answer_rows(again.signature(), {"text": TEXTS}, 32) == answers
    assert sorted(again.signatures) == sorted(predictor.signatures)


@pytest.mark.slow
def test_exports_of_pre_trainers_and_of_token_ids(opened, tmp_path, exports_of):
    model = opened(bert_tf.BertPreTrainer)
    texts = ["a [MASK] film", "the bad [MASK] is [MASK]"]
    with exports_of(DEFAULT):
        model.export(tmp_path / "words/1")
    served = answer_rows(bert_tf.Predictor(tmp_path / "words").signature(), {"text": texts}, 32)
    found = [[mask["words"][0] for mask in row["masks"]] for row in served]
    assert found == model.predict(texts)
    # Of token ids: of a model without a preprocessor, or where the format is named.
    opened(preprocessor=None).export(tmp_path / "one", verbose=False)
    with exports_of(DEFAULT):
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
    model = bert_tf.BertClassifier.from_preset(preset, labels=["bad", "good"], task=task, seed=1)
    assert model.preprocessor.max_length == 10
    found = model.predict({"review": TEXTS}, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.preprocessor.task == model.preprocessor.task
    np.testing.assert_array_equal(loaded.predict({"review": TEXTS}, verbose=0), found)


def test_vectors_of_sentences_and_of_encoders(preset, opened):
    model = bert_tf.BertSentenceEncoder.from_preset(preset, seed=1)
    found = model.predict(TEXTS[:2])
    assert found.shape == (2, 16)
    np.testing.assert_array_equal(found, [row["vector"] for row in model.embed(TEXTS[:2])])
    encoder = opened(bert_tf.BertEncoder)
    rows = encoder.embed(TEXTS[:2])
    assert len(rows[0]["mean"]) == 16
    found = [row["pooled"] for row in rows]
    expected = encoder.predict(TEXTS[:2], verbose=0)["pooled_output"]
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding(24, 32))
