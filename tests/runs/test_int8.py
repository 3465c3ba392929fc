import json
import os
import re
import subprocess
import time
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from peer_programs import find_peer
from tiny import tiny_config

from bert_tf import (
    BertClassifier,
    BertEncoder,
    BertSpanClassifier,
    BertTokenizer,
    export_model,
    processor,
    save_model,
)
from bert_tf.commands import export_precisions, int8_calibration
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.tensorflow import int8 as plans
from bert_tf.paper.feature_encoder import FeatureEncoder
from bert_tf.server.servable import _load_error
from bert_tf.serving import precisions
from bert_tf.serving.engines import fastest_version
from bert_tf.serving.precisions import same_in_other_types, type_of
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.saved_model import LoadedModel
from bert_tf.tasks.task_table import find_task
from bert_tf.text.answerer import Answerer
from bert_tf.text.opening import load_answerer
from tests.processes.preloaded import run_code

pytestmark = pytest.mark.slow  # an export of two types, calibrated and measured

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [f"{a}{b}" for a in "bdfgklmnprst" for b in "aeiou"]
SIZES = {"max_position_embeddings": 40, "initializer_range": 0.3}
CONFIG = tiny_config(len(SPECIALS) + len(WORDS), "2x32x4", **SIZES)
LABELS = ["bad", "good"]


def texts(number: int, seed: int = 1) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(number)]


def tuned(model) -> Answerer:
    task = find_task("classification").with_settings({"max_length": 40})
    return Answerer(task, model, BertTokenizer([*SPECIALS, *WORDS]), LABELS)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run directory whose examples have the labels that its model gives, clearly."""
    folder = tmp_path_factory.mktemp("run")
    model, random = tuned(BertClassifier(CONFIG, labels=LABELS, seed=0)), np.random.default_rng(2)
    for variable in model.model.variables:
        if variable.path.endswith("bias"):  # zero at first
            variable.assign(random.normal(size=variable.shape) * 0.1)
    head = model.model.head.dense
    head.kernel.assign(random.normal(size=head.kernel.shape))
    strings = {"train": texts(128), "validation": texts(200, seed=2)}
    logits = {name: logits_of(model, each) for name, each in strings.items()}
    middle = float(np.median(logits["train"]))
    head.bias.assign(head.bias.numpy() - [0.0, middle])
    model.save(folder / "best")
    for name, each in strings.items():
        apart = logits[name] - middle
        clear = np.flatnonzero(np.abs(apart) > np.median(np.abs(apart)))
        lines = [f"{each[i]}\t{LABELS[int(apart[i] > 0)]}" for i in clear]
        (folder / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines, ""]))
    files = (f"{name}: {folder / name}.tsv\n" for name in strings)
    (folder / "config.yaml").write_text("".join(files))
    return folder


def logits_of(model: Answerer, strings: list[str]) -> np.ndarray:
    """By how much the second label is ahead."""
    inputs = model.task.kind.model_inputs({"text": tf.constant(strings)}, model.tokenizer, 40)
    return np.subtract(*model.model.predict_on_batch(inputs).T[::-1])


@pytest.fixture
def export(run, tmp_path):
    """`export(**options)`: exports the model of the run to `tmp_path`."""
    options = {"model": run / "best", "name": "words", "output": tmp_path, "verbose": False}
    return lambda **changes: export_model(**options | changes)


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory, exports_of):
    root = tmp_path_factory.mktemp("served")
    with exports_of("serving_default", "tokens"):  # which share their kernels
        how = {"name": "words", "precision": "int8", "verbose": False}
        return export_model(model=run / "best", output=root, **how)


def test_an_export_has_a_twin_in_float32_and_a_card_with_both_scores(exported, run):
    assert exported.versions == {"float32": 1, "int8": 2} and exported.path.name == "2"
    assert [type_of(exported.path.with_name(name)) for name in "12"] == ["float32", "int8"]
    assert set(same_in_other_types(exported.path)) == {"float32", "int8"}
    card = " ".join((exported.path / "README.md").read_text().split())
    assert "8 of 8 products of the encoder, ranges from 64 rows" in card
    scores = r"accuracy 1 in float32, (1|0\.9\d) in int8, on 100 rows"
    assert re.search(rf"{scores} of \S+/validation\.tsv that set no range", card)
    assert "use version 1, the same in float32" in card and "computed in int8" in card
    assert re.search(r"float32 short [\d.]+ ms, long [\d.]+ ms, batch [\d,.]+ ms; int8 short", card)
    assert "version 1 in float32, " in card
    # Kernels are stored as int8, once.
    reader = tf.train.load_checkpoint(str(exported.path / "variables/variables"))
    dtypes = reader.get_variable_to_dtype_map()
    saved = [(dtypes[name], shape) for name, shape in reader.get_variable_to_shape_map().items()]
    kernels = [[32, 96], [32, 32], [32, 64], [64, 32]]
    assert [saved.count((tf.int8, shape)) for shape in kernels] == [2, 2, 2, 2]
    assert (tf.float32, [32, 64]) not in saved


def test_the_answers_are_those_of_float32_but_for_rounding(exported):
    strings = texts(200, seed=3)
    one, two = (Predictor(exported.path.with_name(name)).signature()(text=strings) for name in "12")
    one, two = map(logits_of_answers, (one, two))
    # Eight products, each off by 2% or less of its size, independently.
    error = np.sqrt(np.mean((one - two) ** 2)) / one.std()
    assert 0.001 < error < 3 * 8**0.5 * 0.02


def logits_of_answers(found) -> np.ndarray:
    logits = np.log(found["probability"] / np.maximum(1 - found["probability"], 1e-6))
    return np.where(found["label"] == b"good", logits, -logits)


_OF_AN_EXPORT = """
import sys, json, numpy as np
from bert_tf.serving.predictor import Predictor
model = Predictor(sys.argv[1])
found = model.signature()(text=json.loads(sys.argv[2]))
print(json.dumps([found["label"].astype(str).tolist(), found["probability"].tolist()]))
"""


def test_an_export_answers_the_same_without_vnni(exported):
    strings = texts(20, seed=4)
    here = Predictor(exported.path).signature()(text=strings)
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    done = run_code(_OF_AN_EXPORT, [str(exported.path), json.dumps(strings)], env=env)
    labels, probabilities = json.loads(done.stdout)
    # Products are exact on both. What lies between them rounds differently, by 1e-6: it moves a
    # value that is to be rounded to int8 by one of 127 steps now and then.
    np.testing.assert_allclose(probabilities, here["probability"], atol=0.02)
    assert labels == here["label"].astype(str).tolist()


def test_outliers_are_smoothed(run):
    """A column of inputs 50 times as large as others costs the others few of their steps."""
    model = load_answerer(run / "best")
    block = model.model.encoder.blocks[0]
    gamma = block.attention_layer_norm.gamma
    gamma.assign(np.where(np.arange(32) == 3, 50.0, gamma.numpy()))
    kernel = block.feed_forward.intermediate.kernel
    kernel.assign(np.where(np.arange(32)[:, None] == 3, 0.02, 1.0) * kernel.numpy())
    rows = int8_calibration.read_calibration(model, None, run / "best")
    layer = block.feed_forward.intermediate
    recorder = plans.Recorder(int8_calibration._blocks(model))
    with kernels_of(model.model, lambda _: recorder):
        function = model.function()
    function(text=tf.constant(rows.ranges.columns["text"]))
    plain = plans._range(recorder, [layer], is_smoothed=False)
    smoothed = plans._range(recorder, [layer])
    assert smoothed.divisors.argmax() == 3
    assert smoothed.error < 0.03 < plain.error / 2


def test_a_product_that_int8_computes_badly_stays_in_float32(run, monkeypatch):
    model = load_answerer(run / "best")
    rows = int8_calibration.read_calibration(model, None, run / "best")
    whole = int8_calibration.make_plan_for(model, rows)
    bad = model.model.encoder.blocks[1].feed_forward.intermediate
    made = plans._range

    def range_of(recorder, layers, **options):
        found = made(recorder, layers, **options)
        return replace(found, error=0.5) if layers[0] is bad else found

    monkeypatch.setattr(plans, "_range", range_of)
    plan = int8_calibration.make_plan_for(model, rows)
    assert len(whole.ranges) == 8 and len(plan.ranges) == 7 and bad not in plan.ranges
    planned = Answerer(model.task, model.model, model.tokenizer, LABELS, plan)
    comparison = int8_calibration.compare(model, planned, rows)
    assert comparison.int8 > 0.9
    monkeypatch.setattr(plans, "_range", lambda *a, **o: replace(made(*a, **o), error=0.5))
    refused("none of the model's products", int8_calibration.make_plan_for, model, rows)


def test_rows_that_cannot_calibrate_and_a_loss_are_refused(export, run, tmp_path, monkeypatch):
    (tmp_path / "rows.tsv").write_text("text\tlabel\n" + "ba da\tgood\n" * 40)
    refused("40 rows .* 'good'", export, precision="int8", calibration=tmp_path / "rows.tsv")
    model = load_answerer(run / "best")
    lines = (run / "train.tsv").read_text().splitlines()
    (tmp_path / "few.tsv").write_text("\n".join([*lines[:21], ""]))
    rows = int8_calibration.read_calibration(model, str(tmp_path / "few.tsv"), run / "best")
    assert "10 rows are few" in rows.remarks()[0]
    loss = int8_calibration.ScoreComparison("accuracy", 0.9, 0.88, 2.0, 100)
    monkeypatch.setattr(export_precisions, "compare", lambda *_: loss)
    refused(r"loses 2\.00 points .*more than max_loss 0\.5", export, precision="int8")
    assert not list(tmp_path.glob("words/*/saved_model.pb"))


def test_models_that_int8_is_not_for_are_refused(export, run):
    encoder = FeatureEncoder(BertClassifier(CONFIG, labels=LABELS).encoder, ["-1"], 1)
    recurrent = tuned(BertClassifier(encoder, labels=LABELS))
    refused("not for LSTMs or heads on features", int8_calibration._blocks, recurrent)
    model = load_answerer(run / "best")
    kernel = model.model.encoder.blocks[1].attention.key.kernel
    kernel.assign(np.where(np.arange(32) == 3, np.inf, kernel.numpy()))
    refused("not finite", int8_calibration._blocks, model)
    refused("names no rows", int8_calibration.read_calibration, model, None, run)
    refused("calibration is for int8", export, calibration=run / "train.tsv")


def test_where_the_kernel_is_missing_the_twin_is_named(exported, monkeypatch):
    reason = "No OpKernel was registered to support Op '_QuantizedMatMul' used by {{node x}}"

    def refuse(directory):
        raise tf.errors.NotFoundError(None, None, reason)

    monkeypatch.setattr("bert_tf.serving.engines.LoadedModel", refuse)
    cure = f"use {exported.path.with_name('1')}, the same model in float32"
    refused(cure, Predictor, exported.path)
    error = tf.errors.NotFoundError(None, None, reason)
    assert cure in _load_error(error, exported.path).message
    assert _load_error(error, exported.path.with_name("1")).message == reason


class _Slow:
    seconds: dict  # by version
    loaded: list

    def __init__(self, directory, engine, *, is_quiet):
        self.loaded.append(directory.name)
        self.signatures = LoadedModel(directory).signatures
        self.name = directory.name

    def run(self, name, inputs):
        time.sleep(self.seconds[self.name])

    def close(self):
        pass


@for_each("seconds chosen", ((0.0, 0.02), "1"), ((0.02, 0.0), "2"))
def test_the_fastest_type_is_measured_once(exported, tmp_path, monkeypatch, seconds, chosen):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    slow = type("Slow", (_Slow,), {"seconds": dict(zip("12", seconds, strict=True)), "loaded": []})
    monkeypatch.setattr("bert_tf.serving.engines.Engines", slow)
    monkeypatch.setattr(precisions, "_SECONDS", 0.01)
    # What is measured beside live traffic is forgotten with the process.
    for is_quiet, loaded in ((False, 2), (False, 4), (True, 6), (True, 6)):
        processor._TIMES.clear()  # as in another process
        for _ in range(2):
            assert fastest_version(exported.path, is_quiet=is_quiet).name == chosen
        assert slow.loaded == ["1", "2"] * (loaded // 2)
    processor._TIMES.clear()
    assert fastest_version(exported.path.with_name("9")) == exported.path.with_name("9")


COMPARE = int8_calibration.compare
LOSSLESS = int8_calibration.ScoreComparison("accuracy", 0.9, 0.9, 0.0, 100)


@pytest.fixture
def exported_empty(monkeypatch):
    """Exports are empty folders; the numbers and remarks of their types are what is tested."""

    def export(self, name, *, root, version, **more):
        path = root / name / str(version)
        path.mkdir(parents=True)
        return path

    monkeypatch.setattr(Answerer, "export", export)
    monkeypatch.setattr(export_precisions, "_times", lambda model: {"short": 1.0})
    monkeypatch.setattr(export_precisions, "compare", lambda *_: LOSSLESS)


def test_further_versions_need_their_labels_set(export, tmp_path, exported_empty):
    (tmp_path / "every" / "3").mkdir(parents=True)
    (tmp_path / "models.config").write_text(
        'model_config_list { config { name: "every" base_path: "/models/every" } }\n'
    )
    again = export(name="every", precision="all")
    assert again.versions == {"float32": 4, "bfloat16": 5, "int8": 6}
    assert any("set its version_labels to float32 4" in line for line in again.lines())


ALONE = [((1, 2, 3), ["float32"]), ((2, 1, 3), ["bfloat16"])]


@for_each("milliseconds kept", *ALONE, ((3, 2, 1), ["float32", "int8"]))
def test_the_fastest_type_is_exported_alone_or_with_its_twin(
    export, monkeypatch, exported_empty, milliseconds, kept
):
    times = iter(milliseconds)
    monkeypatch.setattr(export_precisions, "_times", lambda model: {"short": next(times)})
    one = export(precision="auto")
    assert list(one.versions) == kept
    assert "another processor may differ" in " ".join(one.lines())


@for_each("kind", "span", "vector")
def test_auto_exports_spans_and_vectors(export, tmp_path, monkeypatch, exported_empty, kind):
    """Spans are scored by their F1, vectors without labels by the cosine of both types'."""
    times = iter([3, 2, 1])
    monkeypatch.setattr(export_precisions, "_times", lambda model: {"short": next(times)})
    monkeypatch.setattr(export_precisions, "compare", COMPARE)
    tokenizer, strings = BertTokenizer([*SPECIALS, *WORDS]), texts(80)
    if kind == "span":
        save_model(BertSpanClassifier(CONFIG, seed=0), tmp_path / "model", tokenizer)
        paragraphs = []
        for number, text in enumerate(strings):
            answer = {"text": text.split()[0], "answer_start": 0}
            asked = {"id": str(number), "question": text.split()[-1], "answers": [answer]}
            paragraphs.append({"context": text, "qas": [asked]})
        rows = tmp_path / "rows.json"
        rows.write_text(json.dumps({"data": [{"title": "a", "paragraphs": paragraphs}]}))
    else:
        save_model(BertEncoder(CONFIG, seed=0), tmp_path / "model", tokenizer)
        rows = tmp_path / "rows.tsv"
        rows.write_text("\n".join(["text", *strings, ""]))
    model = tmp_path / "model"
    one = export(model=model, precision="auto", calibration=rows, max_loss=100.0)
    assert one.versions == {"float32": 1, "int8": 2}
    score = "f1 .* in float32, .*" if kind == "span" else r"cosine 1 in float32, (1|0\.9\d+)"
    expected = rf"int8: {score} in int8, on 40 rows"
    assert any(re.match(expected, line) for line in one.lines())


def test_auto_leaves_int8_out_that_loses_too_much_or_has_no_rows(
    export, run, tmp_path, monkeypatch, exported_empty
):
    loss = int8_calibration.ScoreComparison("accuracy", 0.9, 0.8, 10.0, 100)
    monkeypatch.setattr(export_precisions, "compare", lambda *_: loss)
    times = iter([2, 3, 1])
    monkeypatch.setattr(export_precisions, "_times", lambda model: {"short": next(times, 1)})
    load_answerer(run / "best").save(tmp_path / "alone" / "best")
    for model, reason in ((run, "int8 loses 10.00 points"), (tmp_path / "alone", "")):
        one = export(model=model / "best", precision="auto")
        assert "int8" not in one.versions
        assert any(line.startswith(f"without int8: {reason}") for line in one.lines())


_IN_OLD = """
import json, sys, numpy as np, tensorflow as tf, tensorflow_text
run = tf.saved_model.load(sys.argv[1]).signatures["serving_default"]
found = run(text=tf.constant(json.loads(sys.argv[2])))
print(tf.__version__, json.dumps(found["probability"].numpy().tolist()))
"""


@pytest.mark.peer("tensorflow-2.17")
def test_tensorflow_2_17_answers_the_same(exported):
    strings = texts(20, seed=4)
    command = [find_peer("tensorflow-2.17"), "-c", _IN_OLD, exported.path, json.dumps(strings)]
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    version, _, found = done.stdout.partition(" ")
    assert version.startswith("2.17")
    here = Predictor(exported.path).signature()(text=strings)["probability"]
    np.testing.assert_allclose(json.loads(found), here, atol=0.02)  # as without VNNI
