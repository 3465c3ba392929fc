import errno
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import tensorflow as tf
from rounding import rounding

from bert_tf import BertConfig, BertTokenizer
from bert_tf.errors import InputError
from bert_tf.files.atomic import hold_output, temporary_name
from bert_tf.models.answerer import Answerer
from bert_tf.models.task_models import BertClassifier
from bert_tf.serving import export as exporting
from bert_tf.serving.export import SERVED_TEXT_OPS, export, refuse_unservable
from bert_tf.serving.precisions import versions
from bert_tf.serving.predictor import Predictor, answer, rows
from bert_tf.serving.saved_model import nodes_of, read_saved_model
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.signatures import DEFAULT, RawTextModel, Signature
from bert_tf.tasks.table import TASKS
from bert_tf.tokenization import Packer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "farm", "the", "é", "。"]
LABELS = ["land", "wasser", "日"]
# A block, whose sums have up to 16 terms; weights as large as its make scores of up to 40.
CLOSE = rounding(24, 16, size=40)
CLASSIFICATION = Classification()
STRINGS = tf.TensorSpec([None], tf.string)


@pytest.fixture(scope="module")
def classifier() -> tuple[BertTokenizer, BertClassifier]:
    config = BertConfig(
        vocab_size=len(PIECES),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        initializer_range=1.0,
    )
    return BertTokenizer(PIECES), BertClassifier(config, labels=LABELS, seed=0)


def module(classifier, takes_pairs=False, answers=CLASSIFICATION.answers) -> RawTextModel:
    tokenizer, model = classifier
    signature = Signature(
        dict.fromkeys(["text", "text_pair"] if takes_pairs else ["text"], STRINGS),
        lambda strings, _: answers(
            model(CLASSIFICATION.model_inputs(strings, tokenizer, 8)), LABELS
        ),
    )
    return RawTextModel(Answerer(TASKS["classification"], model, tokenizer), {DEFAULT: signature})


def answers_of(predictor, texts, pairs=None, batch_size=32) -> list[dict]:
    strings = {"text": texts, **({} if pairs is None else {"text_pair": pairs})}
    return list(rows(answer(predictor.signature(), strings, batch_size)))


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    return export(module(classifier), "where", root=tmp_path_factory.mktemp("served"))


def test_answers_come_in_the_order_of_the_texts_from_batches_of_like_length():
    class Echo:
        structured_input_signature = ((), {"text": None})
        batches: ClassVar = []

        def __call__(self, text):
            self.batches.append([len(value) for value in text.numpy()])
            return {"text": text, "letters": tf.strings.bytes_split(text).to_tensor()}

    texts = ["x" * n for n in np.random.default_rng(0).permutation(23)]
    done = []
    found = answer(Echo(), {"text": texts}, 5, answered=done.append)
    assert [text.decode() for text in found["text"]] == texts
    assert [b"".join(row).decode() for row in found["letters"]] == texts
    # Two are computed at the same time, so either may be noted first.
    assert sorted(Echo.batches) == [list(range(23))[i : i + 5] for i in range(0, 23, 5)]
    assert done == [5, 10, 15, 20, 23]
    lengths = [-len(text) for text in texts]
    again = answer(Echo(), {"text": texts}, 5, lengths=lengths)
    np.testing.assert_array_equal(again["letters"], found["letters"])
    assert [22, 21, 20, 19, 18] in Echo.batches[5:]


TEXTS = ["The seas", "", "farm " * 50, "sea。farm", "été"]


def test_the_signature_takes_strings_and_answers_per_row(saved, classifier):
    signature = tf.saved_model.load(str(saved)).signatures["serving_default"]
    outputs = signature(text=tf.constant(TEXTS))
    assert {name: value.shape.as_list() for name, value in outputs.items()} == {
        "label": [5],
        "probability": [5],
        "labels": [5, 3],
        "probabilities": [5, 3],
    }
    tokenizer, model = classifier
    logits = model(Packer(tokenizer, 8)(tokenizer.tokenize(TEXTS))).numpy()
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for row, labels, probabilities in zip(
        expected, outputs["labels"].numpy(), outputs["probabilities"].numpy(), strict=True
    ):
        assert [label.decode() for label in labels] == [LABELS[i] for i in np.argsort(-row)]
        np.testing.assert_allclose(probabilities, np.sort(row)[::-1], rtol=0, atol=CLOSE)
    np.testing.assert_array_equal(outputs["label"], outputs["labels"][:, 0])
    np.testing.assert_array_equal(outputs["probability"], outputs["probabilities"][:, 0])


def test_the_graph_holds_only_ops_that_servers_have(saved):
    ops = {node.op for node in nodes_of(read_saved_model(saved))}
    assert {op for op in ops if not hasattr(tf.raw_ops, op)} == SERVED_TEXT_OPS
    refuse_unservable(saved)


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


def test_other_ops_are_refused_and_nothing_is_left(classifier, tmp_path):
    def python(outputs, labels):
        answers = CLASSIFICATION.answers(outputs, labels)
        label = tf.numpy_function(lambda x: x, [answers["label"]], tf.string)
        return {**answers, "label": label}

    with pytest.raises(InputError, match="PyFunc"):
        export(module(classifier, answers=python), "broken", root=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_function_for_xla_is_refused_by_name(classifier, tmp_path):
    """Servers switch XLA off: the first request to such a function failed."""

    @tf.function(jit_compile=True)
    def compiled(probabilities):
        return probabilities * 1.0

    def answers(outputs, labels):
        found = CLASSIFICATION.answers(outputs, labels)
        return {**found, "probability": compiled(found["probability"])}

    with pytest.raises(InputError, match=r"XLA.*compiled.*leave jit_compile=True out"):
        export(module(classifier, answers=answers), "compiled", root=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_signature_that_fails_its_warm_up_is_refused_by_name(
    classifier, tmp_path, warm_up_is_checked
):
    def answers(outputs, labels):
        found = CLASSIFICATION.answers(outputs, labels)
        with tf.control_dependencies([tf.debugging.assert_less(tf.shape(outputs)[0], 3)]):
            return {"label": tf.identity(found["label"])}

    with pytest.raises(InputError, match="'serving_default' fails its batch warm-up request"):
        export(module(classifier, answers=answers), "m", root=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (lambda found: {"sum": tf.reduce_sum(found["probability"])}, "make the batch the first"),
        (lambda found: {"half": tf.cast(found["probability"], tf.bfloat16)}, "half precision"),
    ],
)
def test_an_output_that_rest_cannot_give_is_refused(
    classifier, tmp_path, warm_up_is_checked, outputs, message
):
    def answers(logits, labels):
        return outputs(CLASSIFICATION.answers(logits, labels))

    with pytest.raises(InputError, match=message):
        export(module(classifier, answers=answers), "m", root=tmp_path)


def test_exports_at_once_get_versions_of_their_own(classifier, tmp_path, monkeypatch):
    """Both wrote version 1, and one of them was lost."""
    written = []

    def save(module, directory, signatures):
        time.sleep(0.2)
        Path(directory, "saved_model.pb").write_bytes(b"")
        written.append(directory)

    monkeypatch.setattr(tf.saved_model, "save", save)
    monkeypatch.setattr(exporting, "_prepare_for_servers", lambda *given: None)
    one = module(classifier)
    one.signatures = lambda: None
    with ThreadPoolExecutor(3) as pool:
        made = [pool.submit(export, one, "m", root=tmp_path) for _ in range(3)]
    assert sorted(each.result().name for each in made) == ["1", "2", "3"]
    assert [*versions(tmp_path / "m")] == [1, 2, 3]
    assert len(written) == 3
    with ThreadPoolExecutor(2) as pool:
        made = [pool.submit(export, one, "m", root=tmp_path, version=7) for _ in range(2)]
    refused = [each.exception() for each in made if each.exception()]
    assert len(refused) == 1 and "give --version a free positive number" in str(refused[0])


def test_what_a_killed_export_left_is_removed(classifier, tmp_path, monkeypatch):
    own = tmp_path / "m" / ".mine.tmp"
    with hold_output(tmp_path / "m"):
        left = temporary_name(tmp_path / "m" / "1")
    for folder in (left, own):
        (folder / "variables").mkdir(parents=True)
    monkeypatch.setattr(tf.saved_model, "save", lambda *args, **options: None)
    monkeypatch.setattr(exporting, "refuse_unservable", lambda folder: None)
    monkeypatch.setattr(exporting, "_prepare_for_servers", lambda *given: None)
    export(module(classifier), "m", root=tmp_path)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == [own.name, "1"]


def test_a_full_disk_is_an_oserror_and_nothing_is_left(classifier, tmp_path, monkeypatch):
    """It was a traceback of TensorFlow's."""

    def save(*args, **options):
        message = f"{tmp_path}/variables; No space left on device"
        raise tf.errors.ResourceExhaustedError(None, None, message)

    monkeypatch.setattr(tf.saved_model, "save", save)
    with pytest.raises(OSError, match="No space left") as raised:
        export(module(classifier), "m", root=tmp_path)
    assert raised.value.errno == errno.ENOSPC
    assert list((tmp_path / "m").iterdir()) == []


def test_what_tensorflow_says_of_temporary_folders_is_hidden(
    classifier, tmp_path, monkeypatch, caplog
):
    """As in a notebook, where it logs at INFO; warnings are shown."""
    logger = tf.get_logger()
    caplog.set_level("INFO", logger="tensorflow")

    def save(module, directory, signatures):
        logger.info("Assets written to: %s", directory)
        logger.warning("a warning")

    monkeypatch.setattr(tf.saved_model, "save", save)
    for step in ("refuse_unservable", "_prepare_for_servers"):
        monkeypatch.setattr(exporting, step, lambda *given: None)
    export(module(classifier), "m", root=tmp_path)
    logger.info("later")
    assert [record.getMessage() for record in caplog.records] == ["a warning", "later"]


@pytest.mark.slow
def test_versions_count_up_and_are_never_overwritten(classifier, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "_prepare_for_servers", lambda *given: None)
    assert [*versions(tmp_path / "m")] == []
    assert export(module(classifier), "m", root=tmp_path) == tmp_path / "m" / "1"
    assert export(module(classifier), "m", root=tmp_path, version=7) == tmp_path / "m" / "7"
    assert export(module(classifier), "m", root=tmp_path).name == "8"
    assert [*versions(tmp_path / "m")] == [1, 7, 8]
    for bad in (7, -1, 2**63):  # the last is beyond TensorFlow Serving's int64
        with pytest.raises(InputError, match="free positive number"):
            export(module(classifier), "m", root=tmp_path, version=bad)
    with pytest.raises(InputError, match="cannot name"):
        export(module(classifier), "a/b", root=tmp_path)


def test_the_predictor_takes_the_newest_version(classifier, saved):
    predictor = Predictor(saved.parent)
    assert predictor.directory == saved
    answers = answers_of(predictor, TEXTS, batch_size=2)
    alone = [answers_of(predictor, [text])[0] for text in TEXTS]
    for found, single in zip(answers, alone, strict=True):
        assert found["label"] == single["label"] == next(iter(found["probabilities"]))
        assert found["probability"] == pytest.approx(single["probability"], abs=CLOSE)
    assert answers_of(predictor, []) == []
    with pytest.raises(InputError, match="takes single strings"):
        answers_of(predictor, TEXTS, TEXTS)
    with pytest.raises(InputError, match="not valid Unicode"):
        answers_of(predictor, ["\ud800"])


def test_pairs(classifier, tmp_path):
    directory = export(module(classifier, takes_pairs=True), "pairs", root=tmp_path)
    predictor = Predictor(directory)
    assert predictor.inputs == ["text", "text_pair"]
    one, other = answers_of(predictor, ["the sea", "the farm"], ["the farm", "the sea"])
    assert one["probabilities"] != other["probabilities"]


def test_a_folder_without_a_saved_model(tmp_path):
    with pytest.raises(InputError, match="holds no SavedModel"):
        Predictor(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"not a model")
    with pytest.raises(InputError, match="cannot be loaded"):
        Predictor(tmp_path)
