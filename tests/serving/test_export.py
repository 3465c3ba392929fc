import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertConfig, BertTokenizer
from bert_tf.errors import InputError
from bert_tf.models.classifier import BertClassifier
from bert_tf.serving.checks import SERVED_TEXT_OPS, ops_of, refuse_unservable_ops
from bert_tf.serving.export import export, versions
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.signatures import TextClassifier
from bert_tf.tokenization import Packer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "farm", "the", "é", "。"]
LABELS = ["land", "wasser", "日"]


@pytest.fixture(scope="module")
def classifier() -> tuple[BertTokenizer, BertClassifier]:
    config = BertConfig(
        vocab_size=len(PIECES), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, initializer_range=1.0,
    )  # fmt: skip
    return BertTokenizer(PIECES), BertClassifier(config, labels=LABELS, seed=0)


def module(classifier, takes_pairs=False) -> TextClassifier:
    tokenizer, model = classifier
    return TextClassifier(tokenizer, model, LABELS, max_length=8, takes_pairs=takes_pairs)


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    return export(module(classifier), "where", root=tmp_path_factory.mktemp("served"))


TEXTS = ["The seas", "", "farm " * 50, "sea。farm", "été"]


def test_the_signature_takes_strings_and_answers_per_row(saved, classifier):
    signature = tf.saved_model.load(str(saved)).signatures["serving_default"]
    outputs = signature(text=tf.constant(TEXTS))
    assert {name: value.shape.as_list() for name, value in outputs.items()} == {
        "label": [5], "probability": [5], "labels": [5, 3], "probabilities": [5, 3],
    }  # fmt: skip
    tokenizer, model = classifier
    logits = model(Packer(tokenizer, 8)(tokenizer.tokenize(TEXTS))).numpy()
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    for row, labels, probabilities in zip(
        expected, outputs["labels"].numpy(), outputs["probabilities"].numpy(), strict=True
    ):
        assert [label.decode() for label in labels] == [LABELS[i] for i in np.argsort(-row)]
        np.testing.assert_allclose(probabilities, np.sort(row)[::-1], atol=1e-6)
    np.testing.assert_array_equal(outputs["label"], outputs["labels"][:, 0])
    np.testing.assert_array_equal(outputs["probability"], outputs["probabilities"][:, 0])


def test_the_graph_holds_only_ops_that_servers_have(saved):
    assert {op for op in ops_of(saved) if not hasattr(tf.raw_ops, op)} == SERVED_TEXT_OPS
    refuse_unservable_ops(saved)


def test_a_text_op_that_servers_lack_is_refused(tmp_path):
    import tensorflow_text as tf_text

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)])
    def trim(ids):
        return tf_text.RoundRobinTrimmer(max_seq_length=4).trim([ids, ids])[0].to_tensor()

    trimming = tf.Module()
    trimming.trim = trim
    tf.saved_model.save(trimming, str(tmp_path))
    with pytest.raises(InputError, match="RoundRobinTrim"):
        refuse_unservable_ops(tmp_path)


def test_other_ops_are_refused_and_nothing_is_left(classifier, tmp_path):
    class Python(TextClassifier):
        def _classify(self, text, text_pair):
            outputs = super()._classify(text, text_pair)
            label = tf.numpy_function(lambda x: x, [outputs["label"]], tf.string)
            return {**outputs, "label": label}

    tokenizer, model = classifier
    broken = Python(tokenizer, model, LABELS, max_length=8, takes_pairs=False)
    with pytest.raises(InputError, match="PyFunc"):
        export(broken, "broken", root=tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_versions_count_up_and_are_never_overwritten(classifier, tmp_path):
    assert versions(tmp_path / "m") == []
    assert export(module(classifier), "m", root=tmp_path) == tmp_path / "m" / "1"
    assert export(module(classifier), "m", root=tmp_path, version=7) == tmp_path / "m" / "7"
    assert export(module(classifier), "m", root=tmp_path).name == "8"
    assert versions(tmp_path / "m") == [1, 7, 8]
    for bad in (7, -1):
        with pytest.raises(InputError, match="free positive number"):
            export(module(classifier), "m", root=tmp_path, version=bad)
    with pytest.raises(InputError, match="cannot name"):
        export(module(classifier), "a/b", root=tmp_path)


def test_the_predictor_takes_the_newest_version(classifier, saved):
    predictor = Predictor(saved.parent)
    assert predictor.directory == saved
    answers = list(predictor(TEXTS, batch_size=2))
    alone = [next(iter(predictor([text]))) for text in TEXTS]
    for answer, single in zip(answers, alone, strict=True):
        assert answer["label"] == single["label"] == next(iter(answer["probabilities"]))
        assert answer["probability"] == pytest.approx(single["probability"], abs=1e-6)
    assert list(predictor([])) == []
    with pytest.raises(InputError, match="takes single strings"):
        list(predictor(TEXTS, TEXTS))


def test_pairs(classifier, tmp_path):
    directory = export(module(classifier, takes_pairs=True), "pairs", root=tmp_path)
    predictor = Predictor(directory)
    assert predictor.inputs == ["text", "text_pair"]
    one, other = predictor(["the sea", "the farm"], ["the farm", "the sea"])
    assert one["probabilities"] != other["probabilities"]


def test_a_folder_without_a_saved_model(tmp_path):
    with pytest.raises(InputError, match="holds no SavedModel"):
        Predictor(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "saved_model.pb").write_bytes(b"not a model")
    with pytest.raises(InputError, match="cannot be loaded"):
        Predictor(tmp_path)
