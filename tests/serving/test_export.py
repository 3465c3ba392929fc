import errno
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig
from tiny import tiny_config

from bert_tf import BertTokenizer
from bert_tf.errors import InputError
from bert_tf.files.atomic import hold_output, temporary_name
from bert_tf.models.task_models import BertClassifier
from bert_tf.server.configuration import BatchingParameters, read_batching_parameters
from bert_tf.serving import export as exporting
from bert_tf.serving.export import (
    BATCHING_FILE,
    SERVED_TEXT_OPS,
    batching_parameters,
    export,
    list_model,
    pinned_versions,
    refuse_unservable,
    set_labels,
)
from bert_tf.serving.precisions import versions
from bert_tf.serving.saved_model import nodes_of, read_saved_model
from bert_tf.startup import has_tf_text
from bert_tf.tasks import signatures
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.signatures import CLASSIFY, DEFAULT, RawTextModel, Signature
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "farm", "море", "海", "。"]
LABELS = ["land", "wasser", "日"]
CLASSIFICATION = Classification()


@pytest.fixture(scope="module")
def answerer() -> Answerer:
    config = tiny_config(len(PIECES), initializer_range=1.0)
    task = TASKS["classification"].with_settings({"max_length": 16})
    model = BertClassifier(config, labels=LABELS, seed=0)
    return Answerer(task, model, BertTokenizer(PIECES), LABELS)


def module(answerer, answers=CLASSIFICATION.answers) -> RawTextModel:
    def respond(strings, answerer):
        inputs = CLASSIFICATION.model_inputs(strings, answerer.tokenizer, 8)
        return answers(answerer.predict(inputs), LABELS)

    return RawTextModel(answerer, {DEFAULT: Signature({"text": signatures.TEXTS}, respond)})


@pytest.fixture(scope="module")
def steps() -> list[tuple[str, int, int]]:
    return []


@pytest.fixture(scope="module")
def exported(answerer, tmp_path_factory, steps) -> Path:
    run = tmp_path_factory.mktemp("run")
    (run / "best").mkdir()
    (run / "best" / "metrics.json").write_text('{"examples": 40, "accuracy": 0.925, "f1": null}')
    (run / "config.yaml").write_text("# a comment\ndata: reviews\nepochs: 3\n")
    return answerer.export(
        "sentiment",
        root=run / "served",
        directory=run / "best",
        step=lambda *step: steps.append(step),
    )


def test_what_an_export_says_and_holds(exported, steps):
    *traced, written, loaded = steps
    assert traced == [("tracing the signatures", i, len(traced)) for i in range(len(traced))]
    assert len(traced) > 1
    assert written == ("writing the graph and the weights", 0, 1)
    assert loaded == ("loading the model as a server does", 0, 1)
    model = read_saved_model(exported)
    ops = {node.op for node in nodes_of(model)}
    text_ops = SERVED_TEXT_OPS if has_tf_text() else set()
    assert {op for op in ops if not hasattr(tf.raw_ops, op)} == text_ops
    assert model.meta_graphs[0].signature_def["classify"].method_name == CLASSIFY
    refuse_unservable(exported)
    assert models_in(exported.parents[1] / "models.config") == {"sentiment": "/models/sentiment"}
    parameters = read_batching_parameters(exported / BATCHING_FILE)
    # The number of threads is the server's: one per core.
    assert parameters == BatchingParameters(64, 0, 16, num_batch_threads=0)
    assert parameters == read_batching_parameters(exported.parents[1] / "batching.config")


@pytest.mark.tf_text
def test_a_text_op_that_servers_lack_is_refused(tmp_path):
    import tensorflow_text as tf_text

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def trim(ids):
        return tf_text.RoundRobinTrimmer(max_seq_length=4).trim([ids, ids])[0].to_tensor()

    trimming = tf.Module()
    trimming.trim = trim
    tf.saved_model.save(trimming, str(tmp_path))
    with pytest.raises(InputError, match="RoundRobinTrim"):
        refuse_unservable(tmp_path)


def python(outputs, labels):
    answers = CLASSIFICATION.answers(outputs, labels)
    return {**answers, "label": tf.numpy_function(lambda x: x, [answers["label"]], tf.string)}


@tf.function(jit_compile=True)
def compiled(probabilities):
    return probabilities * 1.0


def with_xla(outputs, labels):
    """Servers switch XLA off: the first request to such a function would fail."""
    answers = CLASSIFICATION.answers(outputs, labels)
    return {**answers, "probability": compiled(answers["probability"])}


def of_two(outputs, labels):
    answers = CLASSIFICATION.answers(outputs, labels)
    with tf.control_dependencies([tf.debugging.assert_less(tf.shape(outputs)[0], 3)]):
        return {"label": tf.identity(answers["label"])}


def without_batch(outputs, labels):
    return {"sum": tf.reduce_sum(outputs)}


def half(outputs, labels):
    return {"half": tf.cast(outputs, tf.bfloat16)}


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (python, "PyFunc"),
        pytest.param(with_xla, r"XLA.*compiled.*jit_compile=True", marks=pytest.mark.slow),
        (of_two, "'serving_default' fails its batch warm-up request"),
        pytest.param(without_batch, "make the batch the first", marks=pytest.mark.slow),
        pytest.param(half, "half precision", marks=pytest.mark.slow),
    ],
)
def test_what_servers_cannot_run_is_refused_and_nothing_is_left(
    answerer, tmp_path, warm_up_is_checked, answers, message
):
    with pytest.raises(InputError, match=message):
        export(module(answerer, answers=answers), "broken", root=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.fixture
def save_with(answerer, tmp_path, monkeypatch):
    """`save_with(save)`: exports in `tmp_path` save by that function, and are not looked at."""

    def saving_with(save):
        def export_it(version=0):
            return export(model, "m", root=tmp_path, version=version)

        monkeypatch.setattr(tf.saved_model, "save", lambda model, folder, signatures: save(folder))
        model = module(answerer)
        model.signatures = lambda step: None
        return export_it

    for step in ("refuse_unservable", "_prepare_for_servers"):
        monkeypatch.setattr(exporting, step, lambda *arguments: None)
    return saving_with


def test_exports_at_once_get_versions_of_their_own(save_with, tmp_path):
    export_it = save_with(lambda folder: time.sleep(0.2))
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(export_it) for _ in range(3)]
    assert sorted(export.result().name for export in made) == ["1", "2", "3"]
    assert [*versions(tmp_path / "m")] == [1, 2, 3]
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(export_it, 7) for _ in range(2)]
    refused = [export.exception() for export in made if export.exception()]
    assert len(refused) == 1 and "already exists: the next free version is 8" in str(refused[0])


def test_versions_count_up_and_are_never_overwritten(save_with, answerer, tmp_path):
    export_it = save_with(lambda folder: None)
    assert [*versions(tmp_path / "m")] == []
    assert [export_it(version).name for version in (0, 7, 0)] == ["1", "7", "8"]
    assert [*versions(tmp_path / "m")] == [1, 7, 8]
    for bad in (7, -1, 2**63):  # the last is beyond TensorFlow Serving's int64
        with pytest.raises(InputError, match=r"free version is 9|a positive number up to 9223"):
            export_it(bad)
    with pytest.raises(InputError, match="cannot name"):
        export(module(answerer), "a/b", root=tmp_path)


def test_what_a_killed_export_left_is_removed(save_with, tmp_path):
    theirs = tmp_path / "m" / ".mine.tmp"
    with hold_output(tmp_path / "m"):
        left = temporary_name(tmp_path / "m" / "1")
    for folder in (left, theirs):
        (folder / "variables").mkdir(parents=True)
    save_with(lambda folder: None)()
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [theirs.name, "1"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_a_full_disk_is_an_oserror_and_nothing_is_left(save_with, tmp_path, code):
    def save(folder):
        message = f"{tmp_path}/variables; {os.strerror(code)}"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        save_with(save)()
    assert raised.value.errno == code
    assert list((tmp_path / "m").iterdir()) == []


def test_what_tensorflow_says_of_temporary_folders_is_hidden(save_with, caplog):
    """As in a notebook, where it logs at INFO; warnings are shown."""
    logger = tf.get_logger()
    caplog.set_level("INFO", logger="tensorflow")

    def save(folder):
        logger.info("Assets written to: %s", folder)
        logger.warning("a warning")

    save_with(save)()
    logger.info("later")
    assert [record.getMessage() for record in caplog.records] == ["a warning", "later"]


def test_the_model_card_says_what_is_known(exported):
    card = (exported / "README.md").read_text(encoding="utf-8")
    facts = dict(re.findall(r"^\| (\w+) \| (.*) \|$", card, re.MULTILINE))
    assert facts["task"] == "classification"
    assert facts["labels"] == "land, wasser, 日"
    assert facts["data"] == "data reviews"
    assert facts["scores"] == "accuracy 0.925 (40 validation examples, in float32)"
    assert facts["text"] == "lower-cased; at most 16 tokens a row"
    assert "Latin 60%, Cyrillic 20%, Chinese characters 20%" in facts["vocabulary"]
    assert "parameters, computed in float32" in card
    assert "`probabilities` float32 [B, 3]" in card


def test_lists_of_any_length_are_not_batched():
    lists = SignatureDef()
    for name, rank in {"context": 1, "choices": 2}.items():
        for _ in range(rank):
            lists.inputs[name].tensor_shape.dim.add(size=-1)
    assert batching_parameters({"serving_default": lists}) is None


def models_in(path: Path) -> dict[str, str]:
    config = text_format.Parse(path.read_text(encoding="utf-8"), ModelServerConfig())
    return {each.name: each.base_path for each in config.model_config_list.config}


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("model_config_list {}", {}),
        ('# one } two\nmodel_config_list: {\n}  # name: "a"\n# end }\n', {}),
        ('model_config_list {\n  config { name: "b" base_path: "/b" } }\n', {"b": "/b"}),
        ("model_config_list { config { name: 'b' base_path: '/b' } }", {"b": "/b"}),
    ],
)
def test_a_model_is_added_once_and_the_rest_stays(tmp_path, text, before):
    path = tmp_path / "models.config"
    path.write_text(text)
    assert list_model(tmp_path, "a") and list_model(tmp_path, "a.b")
    once = path.read_text()
    assert models_in(path) == {**before, "a": "/models/a", "a.b": "/models/a.b"}
    assert list_model(tmp_path, "a")
    assert path.read_text() == once
    assert re.findall("#.*", once) == re.findall("#.*", text)


def test_labels_follow_the_newest_versions_unless_a_user_set_them(tmp_path):
    path = tmp_path / "models.config"
    assert list_model(tmp_path, "a") and list_model(tmp_path, "b")
    assert pinned_versions(tmp_path, "a") == set()
    assert set_labels(tmp_path, "a", {"float32": 1, "int8": 2})
    assert set_labels(tmp_path, "a", {"float32": 3, "bfloat16": 4, "int8": 5})
    assert (pinned_versions(tmp_path, "a"), pinned_versions(tmp_path, "b")) == ({3, 4, 5}, set())
    config = text_format.Parse(path.read_text(), ModelServerConfig())
    model, other = config.model_config_list.config
    assert dict(model.version_labels) == {"float32": 3, "bfloat16": 4, "int8": 5}
    assert list(model.model_version_policy.specific.versions) == [3, 4, 5]
    assert other.name == "b" and not other.version_labels
    labelled = path.read_text()
    for labels, more in (
        ("versions: 5", "versions: 5 versions: 6"),
        ('"int8" value: 5 }', '"int8" value: 5 }\n    version_labels { key: "stable" value: 5 }'),
    ):
        path.write_text(labelled.replace(labels, more))
        assert not set_labels(tmp_path, "a", {"int8": 9})
    mine = 'config { name: "a" model_version_policy: { specific: { versions: [7, 8] } } }'
    path.write_text(f"model_config_list {{ {mine} }}")
    assert not set_labels(tmp_path, "a", {"int8": 9})
    assert pinned_versions(tmp_path, "a") == {7, 8}
    path.write_text("custom_model_config {}")
    assert not list_model(tmp_path, "a")
    assert path.read_text() == "custom_model_config {}"
