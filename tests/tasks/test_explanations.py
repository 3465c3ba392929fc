import json
from dataclasses import replace

import numpy as np
import pytest
from cases import for_each
from rounding import assert_equal_but_for_rounding
from tiny import tiny_config

from bert_tf import BertClassifier, BertTokenizer
from bert_tf.models.loading import class_of_kind
from bert_tf.serving.predictor import answer
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "ship", "cow", "."]
CONFIG = tiny_config(len(PIECES), "1x32x2", initializer_range=0.2)
TEXTS = ["seas", "", "ship cow . sea", "ship", "cow " * 40, "what ship"]
# Of a logit's difference: as exact as what `explain` stops at, and float32's sums of 64 terms.
CLOSE = {"rtol": 0.006, "atol": 2e-4}


def made(name: str, labels: list[str]) -> Answerer:
    task = TASKS[name].with_settings({"max_length": 12})
    model = class_of_kind(task.kind)(CONFIG, seed=3, **task.kind.head(labels))
    return Answerer(task, model, BertTokenizer(PIECES), labels)


def check_sums(found, prefix="", pieces="pieces_attribution") -> None:
    rise = found[f"{prefix}logit"] - found[f"{prefix}masked_logit"]
    assert np.abs(rise).max() > 0.1  # there is something to explain
    np.testing.assert_allclose(found[pieces].sum(-1), rise, **CLOSE)


@pytest.fixture(scope="module")
def classifier() -> Answerer:
    return made("classification", ["no", "yes"])


@pytest.fixture(scope="module")
def explain(classifier):
    return classifier.module(explanations=True).signature("explain")


def test_attributions_add_up_to_the_difference_of_the_logits(classifier, explain):
    found = answer(explain, {"text": TEXTS}, 4)
    check_sums(found)
    answered = answer(classifier.function(), {"text": TEXTS}, 4)
    assert (found["label"] == answered["label"]).all()
    assert_equal_but_for_rounding(found["probability"], answered["probability"], 50, 64)
    assert (found["truncated"] == answered["truncated"]).all()


@pytest.mark.slow
def test_word_vectors_that_keras_replaces_and_pairs_are_explained():
    tuned = made("classification", ["no", "yes"])
    table = tuned.model.encoder.embeddings.word_embeddings
    table.enable_lora(2)
    for weight in (table.lora_embeddings_a, table.lora_embeddings_b):
        weight.assign(np.random.default_rng(1).normal(size=weight.shape))
    check_sums(answer(tuned.function("explain"), {"text": TEXTS}, 6))
    pairs = made("mrpc", ["0", "1"]).function("explain")
    check_sums(answer(pairs, {"text": ["sea ship", "cow"], "text_pair": ["cow .", "."]}, 4))


def test_each_piece_has_its_own(explain):
    found = answer(explain, {"text": TEXTS}, 6)
    texts = [[piece.decode() for piece in row] for row in found["pieces_text"]]
    assert texts[0][:5] == ["[CLS]", "sea", "##s", "[SEP]", ""]
    assert found["pieces_count"].tolist() == [4, 2, 6, 3, 12, 4]
    for pieces, added in zip(texts, found["pieces_attribution"], strict=True):
        is_explained = np.array([text not in ("", "[CLS]", "[SEP]") for text in pieces])
        assert (added != 0).tolist() == is_explained.tolist()
    # A lone piece takes all.
    rise = found["logit"] - found["masked_logit"]
    np.testing.assert_allclose(found["pieces_attribution"][3, 1], rise[3], **CLOSE)


def test_a_batch_does_not_change_an_explanation(explain):
    together = answer(explain, {"text": TEXTS}, 6)
    for place, text in enumerate(TEXTS):
        alone = answer(explain, {"text": [text]}, 1)
        count = alone["pieces_count"][0]
        # The batch goes on until its roughest text is exact enough.
        found, expected = (x["pieces_attribution"][:, :count] for x in (together, alone))
        np.testing.assert_allclose(found[place], expected[0], rtol=0.01, atol=1e-3)
    assert len(answer(explain, {"text": []}, 1)) == 0


@pytest.mark.slow
def test_each_of_several_labels_is_explained():
    model = made("multi_label", ["a", "b", "c"])
    strings = {"text": TEXTS}
    shares = answer(model.function(), strings, 8)["probabilities"]
    # The middle threshold of the most probable: some texts get several labels, some none.
    limits = dict.fromkeys("abc", float(np.median(shares[:, 1])))
    model = replace(model, task=model.task.with_settings({"thresholds": limits}))
    answered = answer(model.function(), strings, 8)
    found = answer(model.module(explanations=True).signature("explain"), strings, 8)
    assert (found["predicted_label"] == answered["predicted_label"]).all()
    assert found["predicted_count"].tolist() == answered["predicted_count"].tolist()
    assert found["predicted_count"].max() > 1
    check_sums(found)
    check_sums(found, "predicted_", "predicted_attribution")
    has = found["predicted_count"] > 0
    assert (found["label"][has] == found["predicted_label"][has, 0]).all()
    first = found["predicted_attribution"][has, 0]
    assert (first == found["pieces_attribution"][has]).all()


@pytest.mark.slow
def test_an_export_explains(tmp_path, call, exports_of):
    made("classification", ["no", "yes"]).save(tmp_path / "model")
    with exports_of("serving_default", "explain"):
        call("export --explanations --name m", model=tmp_path / "model", output=tmp_path)
    out, _ = call("predict --signature explain --text", "ship cow", model=tmp_path / "m")
    found = json.loads(out)
    assert [piece["text"] for piece in found["pieces"]] == ["[CLS]", "ship", "cow", "[SEP]"]
    (same,) = BertClassifier.from_preset(tmp_path / "model").explain(["ship cow"])
    assert {"text": "ship cow", **same}.keys() == found.keys()
    added = sum(piece["attribution"] for piece in found["pieces"])
    np.testing.assert_allclose(added, found["logit"] - found["masked_logit"], **CLOSE)


@for_each(
    "task options reason",
    ("classification", "--precision int8", "needs gradients"),
    ("classification", "--long_texts windows", "not read in windows"),
    ("regression", "", "is for classifiers"),
)
def test_what_cannot_be_explained_is_refused(task, options, reason, tmp_path, call):
    made(task, ["no", "yes"] if task == "classification" else []).save(tmp_path / "model")
    line = f"export --explanations --name m {options}"
    folders = {"model": tmp_path / "model", "output": tmp_path}
    assert reason in call.refused(line, **folders)
    assert not list(tmp_path.glob("m/*"))
