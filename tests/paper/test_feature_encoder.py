"""What stands between encoder and head: the cache of vectors, a frozen encoder, a BiLSTM.

test_every_task.py runs whole tasks on it.
"""

import json
import math
import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from rounding import rounding
from safetensors.numpy import load_file, save_file
from small_runs import finetuning
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, load_model, save_model
from bert_tf.cli import main
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.errors import InputError
from bert_tf.models.task_models import BertChooser, BertClassifier, BertTagger
from bert_tf.paper.feature_cache import FeatureCache
from bert_tf.paper.feature_encoder import FeatureEncoder, LayerMix
from bert_tf.text.opening import load_answerer
from bert_tf.training.watcher import Watcher

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]
CONFIG = tiny_config(len(PIECES), initializer_range=0.3)
# A block, whose sums have up to 16 terms; of 8 numbers with mean 0 and variance 1 none is above
# the root of 7.
CLOSE = {"rtol": 0, "atol": rounding(24, 16, size=7**0.5)}
ROWS = [[2, 5, 6, 3, 0], [2, 7, 3, 0, 0], [2, 5, 6, 8, 3]]


@pytest.fixture(scope="module")
def encoder():
    return BertEncoder(CONFIG, seed=1)


@pytest.fixture(scope="module")
def model(encoder):
    return FeatureEncoder(encoder, ["-1", "embeddings"])


@pytest.fixture
def short_lstm(monkeypatch):
    monkeypatch.setattr("bert_tf.paper.feature_encoder.LSTM_UNITS", 4)


def inputs_of(rows):
    ids = tf.constant(rows)
    return {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": tf.cast(ids != 0, tf.int32)}


def vectors_of(model, inputs):
    states = [state.numpy() for state in model.encoder(inputs)["hidden_states"]]
    is_token = inputs["padding_mask"].numpy()[..., None]
    return np.concatenate([states[-1], states[0]], -1) * is_token


class Counting:
    """Computes vectors, and counts how often."""

    def __init__(self, model):
        self.compute = model.features.compute
        self.calls = tf.Variable(0)

    def __call__(self, inputs):
        self.calls.assign_add(1)
        return self.compute(inputs)


def remembering(model, folder):
    cache, counting = FeatureCache(model.features, folder), Counting(model)
    return cache, counting, tf.function(lambda rows: cache.remember(inputs_of(rows), counting))


@pytest.mark.slow
def test_vectors_are_computed_once_and_survive_a_kill(model, tmp_path):
    expected = vectors_of(model, inputs_of(ROWS))
    cache, counting, remember = remembering(model, tmp_path / "features")
    first = remember(ROWS).numpy()
    np.testing.assert_allclose(first, expected, **CLOSE)
    # Other batches of the same rows, cut to their length: nothing is computed.
    np.testing.assert_array_equal(remember([ROWS[2], ROWS[0]]), first[[2, 0]])
    np.testing.assert_array_equal(remember([ROWS[1][:3]]), first[[1], :3])
    assert counting.calls == 1

    # A killed run left half a row of vectors and half an entry of the index.
    for name in ("vectors", "index"):
        with (tmp_path / "features" / name).open("ab") as file:
            file.write(b"half")
    _, counting, remember = remembering(model, tmp_path / "features")
    np.testing.assert_array_equal(remember(ROWS), first)
    new = [*ROWS[:1], [2, 8, 3, 0, 0]]
    np.testing.assert_allclose(remember(new), vectors_of(model, inputs_of(new)), **CLOSE)
    np.testing.assert_array_equal(remember(ROWS), first)
    assert counting.calls == 1
    cache.close()
    assert not (tmp_path / "features").exists()


def test_caches_of_other_weights_or_without_room(model, tmp_path, monkeypatch):
    _, _, remember = remembering(model, tmp_path)
    remember(ROWS)
    other = FeatureEncoder(BertEncoder(CONFIG, seed=2), model.chosen)
    _, counting, remember = remembering(other, tmp_path)
    np.testing.assert_allclose(remember(ROWS), vectors_of(other, inputs_of(ROWS)), **CLOSE)
    assert counting.calls == 1
    # Nine tenths are room for the seven vectors of two rows, not for three.
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=7 * 16 * 5))
    cache, counting, remember = remembering(model, None)
    for rows in (ROWS[:2], ROWS, ROWS[:2], ROWS):
        np.testing.assert_allclose(remember(rows), vectors_of(model, inputs_of(rows)), **CLOSE)
    assert counting.calls == 3
    assert cache.full
    cache.close()


def test_the_encoder_is_never_trained(short_lstm, encoder):
    based = FeatureEncoder(encoder, ["last"], lstm_layers=2, seed=1)
    tagger = BertTagger(based, labels=["O", "B-X"], seed=1)
    assert len(tagger.trainable_variables) == 2 * 2 * 3 + 2
    weights = [v for lstm in based.lstms for v in lstm.trainable_variables if "kernel" in v.path]
    drawn = {v.numpy().tobytes() for v in weights}
    assert len(drawn) == len(weights) == 8  # no two directions or layers start alike
    inputs = inputs_of(ROWS)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tagger(inputs, training=True) ** 2)
    assert all(g is not None for g in tape.gradient(loss, tagger.trainable_variables))
    # Padding changes nothing, and the outputs are those of the parts.
    longer = inputs_of([[*row, 0, 0] for row in ROWS])
    logits = tagger(inputs).numpy()
    is_token = inputs["padding_mask"].numpy() == 1
    np.testing.assert_allclose(tagger(longer).numpy()[:, :5][is_token], logits[is_token], **CLOSE)
    outputs = based(inputs)
    np.testing.assert_allclose(tagger.head(outputs["sequence_output"]), logits, **CLOSE)
    states = outputs["sequence_output"].numpy()
    means = [row[mask].mean(0) for row, mask in zip(states, is_token, strict=True)]
    np.testing.assert_allclose(outputs["pooled_output"], means, **CLOSE)


def test_a_mix_by_hand():
    """Peters et al. 2018, equation 1, and its derivatives."""
    mix = LayerMix(2)
    states = tf.constant([[[3.0, 1.0, 7.0, -1.0]]])  # two layers, two wide
    np.testing.assert_allclose(mix(states), [[[5.0, 0.0]]])  # at the start their mean
    mix.scores.assign([0.0, math.log(3)])  # a quarter and three quarters
    mix.gamma.assign([2.0])
    with tf.GradientTape() as tape:
        mixed = mix(states)
        loss = tf.reduce_sum(mixed)
    # Each is a sum of a few terms of 14 at most; each term is rounded by four operations or so.
    most = 16 * 14 * 2.0**-24  # 1.3e-5
    np.testing.assert_allclose(mixed, [[[12.0, -1.0]]], rtol=0, atol=most)
    of_scores, of_gamma = tape.gradient(loss, [mix.scores.value, mix.gamma.value])
    # 2 w_j (h_j - sum_k w_k h_k), over h = 4 and 6 with the weighted sum 5.5.
    np.testing.assert_allclose(of_scores, [-0.75, 0.75], rtol=0, atol=most)
    np.testing.assert_allclose(of_gamma, [5.5], rtol=0, atol=most)


def test_a_mix_of_all_layers(short_lstm, encoder, tmp_path):
    based = FeatureEncoder(encoder, ["mix"], lstm_layers=1, seed=1)
    tagger = BertTagger(based, labels=["O", "B-X"], seed=1)
    based.mix.scores.assign([1.0, -1.0])
    based.mix.gamma.assign([3.0])
    inputs = inputs_of(ROWS)
    states = np.array(encoder(inputs)["hidden_states"]) * inputs["padding_mask"].numpy()[..., None]
    first = 3 / (1 + math.exp(-2))
    wanted = first * states[0] + (3 - first) * states[1]
    atol = 3 * CLOSE["atol"]  # gamma is 3
    np.testing.assert_allclose(based(inputs)["hidden_states"][0], wanted, rtol=0, atol=atol)
    # What is kept are all layers, not what is learned of them.
    vectors = based.features(inputs)
    np.testing.assert_allclose(vectors, np.concatenate([*states], -1), **CLOSE)
    save_model(tagger, tmp_path, BertTokenizer(PIECES))
    assert json.loads((tmp_path / "config.json").read_text())["feature_layers"] == ["mix"]
    np.testing.assert_array_equal(load_model(tmp_path)(inputs), tagger(inputs))
    assert len(tagger.trainable_variables) == 2 + 6 + 2
    refused("give it alone", FeatureEncoder, encoder, ["mix", "last"])


def test_the_directory(short_lstm, encoder, tmp_path, capsys):
    folder = tmp_path / "tagger"
    based = FeatureEncoder(encoder, ["last", "0"], lstm_layers=2, seed=1)
    tagger = BertTagger(based, labels=["O", "B-X"], seed=1)
    save_model(tagger, folder, BertTokenizer(PIECES))
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["FeatureBasedBertForTokenClassification"]
    assert (config["feature_layers"], config["feature_lstm_layers"]) == (["last", "0"], 2)
    inputs = inputs_of(ROWS)
    np.testing.assert_array_equal(load_model(folder, BertTagger)(inputs), tagger(inputs))
    # The encoder is in it under Hugging Face's names; a model trained as a whole starts from it.
    found = load_model(folder, BertEncoder)(inputs)["sequence_output"]
    np.testing.assert_array_equal(found, encoder(inputs)["sequence_output"])
    usual = {"allow_new_head": True, "labels": ["a", "b"]}
    whole = load_model(folder, BertClassifier, feature_layers=None, feature_lstm_layers=0, **usual)
    assert isinstance(whole.encoder, BertEncoder)
    assert main(["convert", str(folder), str(tmp_path / "other")]) == 2
    assert "was trained with --features_only" in capsys.readouterr().err


@for_each("model_class head depth", (BertTagger, {"labels": ["O", "B-X"]}, 0), (BertChooser, {}, 1))
def test_a_bilstm_under_a_head(model_class, head, depth, encoder, tmp_path, capsys):
    start, folder = tmp_path / "start", tmp_path / "model"
    save_model(encoder, start, BertTokenizer(PIECES))
    how = {"allow_new_head": True, "feature_lstm_layers": 1, "seed": 1, **head}
    model = load_model(start, model_class, **how)
    inputs = inputs_of(ROWS)
    states = encoder(inputs, padding="zeros")["sequence_output"]
    np.testing.assert_array_equal(model.encoder(inputs)["hidden_states"][0], states)
    assert model.encoder(inputs)["sequence_output"].shape == states.shape  # as wide as the encoder
    outer = {name: tf.reshape(x, [*[1] * depth, *x.shape]) for name, x in inputs.items()}
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.sin(model(outer, training=True)))
    variables = [v for v in model.trainable_variables if "pooler" not in v.path]
    assert all(g is not None for g in tape.gradient(loss, variables))

    save_model(model, folder, BertTokenizer(PIECES))
    np.testing.assert_array_equal(load_model(folder, model_class)(outer), model(outer))
    model.encoder.freeze_layers(1)
    trained = {v.path.split("/")[0] for v in model.trainable_variables}
    assert trained == {"pooler", "bilstm_0", model.head_name}
    assert main(["convert", str(folder), str(tmp_path / "other")]) == 2
    assert "was trained with --bilstm" in capsys.readouterr().err


def test_a_directory_without_its_lstm_and_what_cannot_be_combined(encoder, tmp_path):
    config = replace(CONFIG, feature_lstm_layers=1)
    save_model(BertClassifier(config, labels=["a", "b"]), tmp_path, BertTokenizer(PIECES))
    path = tmp_path / "model.safetensors"
    tensors = {name: t for name, t in load_file(path).items() if "lstm" not in name}
    save_file(tensors, path, {"format": "pt"})
    refused("has no LSTM", load_model, tmp_path)
    options = {"model": "m", "train": "t", "output": "o", "features_only": "last"}
    refused("leave --jit_compile", FinetuningOptions, **options, jit_compile=True)
    with pytest.raises(InputError, match="leave --freeze_layers out"):
        FeatureEncoder(BertEncoder(CONFIG), ["last"]).freeze_layers(1)


@pytest.mark.slow
def test_a_killed_run_keeps_its_vectors_and_ends_alike(encoder, tmp_path, monkeypatch):
    save_model(encoder, tmp_path / "encoder", BertTokenizer(PIECES))
    for name in ("train", "validation"):
        rows = "text\tlabel\n" + "sea ship\twater\ncow barn\tland\n" * 4
        (tmp_path / f"{name}.tsv").write_text(rows)
    few = {"batch_size": 3, "epochs": 2, "save_every": 2}
    options = finetuning(tmp_path, features_only="last,embeddings", **few)
    whole = replace(options, output=str(tmp_path / "whole"))
    run_finetuning(whole)

    class Killing(Watcher):
        def after_step(self, step):
            if step == 5:  # within an epoch
                raise KeyboardInterrupt

    run = tmp_path / "run"
    theirs = run / "features" / "NOTES.md"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    with pytest.raises(KeyboardInterrupt):
        run_finetuning(options, Killing())
    # Two rows of two words, [CLS] and [SEP], each kept once.
    assert (run / ".bert-tf-features" / "vectors").stat().st_size == 2 * 4 * 16 * 4

    def write(*rows):
        raise AssertionError("vectors were computed again")

    monkeypatch.setattr(FeatureCache, "_write", write)
    assert run_finetuning(options).training.started_at == 4
    assert not (run / ".bert-tf-features").exists()
    assert theirs.read_text() == "theirs"
    files = [tmp_path / name / "last" / "model.safetensors" for name in ("run", "whole")]
    assert files[0].read_bytes() == files[1].read_bytes()
    tuned = load_answerer(run / "best")
    assert tuned.model.encoder.chosen == ["last", "embeddings"]
    blocks = (tuned.model.encoder.encoder.blocks[0], encoder.blocks[0])
    for ours, start in zip(*(block.weights for block in blocks), strict=True):
        np.testing.assert_array_equal(ours, start)
