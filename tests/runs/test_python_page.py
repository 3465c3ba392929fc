"""docs/python.md and other pages: their examples run, one after the other."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from rounding import rounded

from bert_tf import BertClassifier, BertPreTrainer, Predictor
from bert_tf.serving.predictor import answer_rows

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "python.md"


def examples_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


EXAMPLES = examples_of(PAGE)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, pretrained, tokenizer, shards):
    folder = tmp_path_factory.mktemp("page")
    (folder / "models").mkdir()
    (folder / "data").mkdir()
    shutil.copytree(pretrained / "best", folder / "models" / "tiny")
    (folder / "data" / "tokenizer").symlink_to(tokenizer)
    (folder / "data" / "shards").symlink_to(shards)
    names = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for example in EXAMPLES:
            variables = {}
            exec(compile(example, str(PAGE), "exec"), variables)
            names.append(variables)
    return folder, names


def test_raw_strings(ran):
    folder, (first, tuning, smoothed, _, own, *_) = ran
    assert np.isfinite(first["model"].history.history["loss"]).all()
    assert "val_accuracy" in tuning["history"].history
    assert list(smoothed["model"].history.history) == ["loss"]
    assert own["model"].output_shape == (None, 1)
    assert (folder / "review.keras").is_file()
    assert (folder / "models" / "review" / "task.json").is_file()
    answers = answer_rows(
        Predictor(folder / "saved_models" / "review").signature(), {"text": ["a film"]}, 1
    )
    assert answers == rounded(first["model"].classify(["a film"]), 24, 32)


def test_a_pipeline_by_hand(ran):
    folder, (*_, tuning, use, _, _) = ran
    history = tuning["model"].history.history["loss"]
    assert history[-1] < history[0]
    assert BertClassifier.from_directory(folder / "models" / "sentiment").labels == ["bad", "good"]
    assert use["logits"].shape == (2, 2)
    np.testing.assert_allclose(
        np.sum(use["outputs"]["attention_probabilities"][0], axis=-1), 1, rtol=1e-5
    )


def test_pretraining(ran):
    """Its loss is the mean over words plus the mean over pairs; at the start, log V + log 2."""
    folder, (*_, training, _) = ran
    (loss,) = training["model"].history.history["loss"]
    vocabulary = BertPreTrainer.from_directory(folder / "models" / "pretrained").config.vocab_size
    assert loss == pytest.approx(np.log(vocabulary) + np.log(2), rel=0.1)


def test_the_commands_as_functions(ran):
    folder, (*_, commands) = ran
    assert commands["answers"][0]["label"] == "good"
    assert commands["report"].scores["accuracy"] == 1
    assert (folder / commands["export"].path / "saved_model.pb").is_file()


def test_several_labels_and_vectors(ran, monkeypatch):
    folder, _ = ran
    monkeypatch.chdir(folder)
    found = {}
    for page in ("multi-label.md", "sentence-vectors.md"):
        (example,) = examples_of(DOCS / page)
        found[page] = {}
        exec(compile(example, page, "exec"), found[page])
    assert (folder / "models" / "topics" / "task.json").is_file()
    vectors = found["sentence-vectors.md"]["model"]
    assert np.linalg.norm(vectors.embed(["a film"])[0]["vector"]) == pytest.approx(1, abs=1e-5)
    assert found["sentence-vectors.md"]["result"].scores["mrr"] > 0
