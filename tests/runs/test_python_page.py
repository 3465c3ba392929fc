import re
import shutil
from pathlib import Path

import keras
import numpy as np
import pytest
from rounding import rounded

from bert_tf import (
    AdamWeightDecay,
    BertClassifier,
    BertConfig,
    BertPreTrainer,
    BertTokenizer,
    Predictor,
    WarmupLinearDecay,
    save_model,
)
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.serving.predictor import answer_rows

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "python.md"


def examples_of(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


EXAMPLES = examples_of(PAGE)


@pytest.fixture(scope="module")
def ran(tmp_path_factory, pretrained):
    folder = tmp_path_factory.mktemp("page")
    (folder / "models").mkdir()
    shutil.copytree(pretrained / "best", folder / "models" / "tiny")
    names = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for example in EXAMPLES:
            variables = {}
            exec(compile(example, str(PAGE), "exec"), variables)
            names.append(variables)
    return folder, names


def test_raw_strings(ran):
    folder, (first, tuning, own, *_) = ran
    assert np.isfinite(first["model"].history.history["loss"]).all()
    shown = {re.sub(r"_\d+$", "", name) for name in tuning["history"].history}
    assert {"val_accuracy", "val_auc", "val_f1_score"} <= shown
    assert own["model"].output_shape == (None, 1)
    assert (folder / "review.keras").is_file()
    assert (folder / "models" / "review" / "task.json").is_file()
    predictor = Predictor(folder / "saved_models" / "review")
    answers = answer_rows(predictor.signature(), {"text": ["a film"]}, 1)
    assert answers == rounded(first["model"].classify(["a film"]), 24, 32)
    # A loss of your own takes the targets that it understands: probabilities by label.
    model = BertClassifier.from_preset(folder / "models" / "review")
    smooth = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)
    model.compile(loss=smooth)
    targets = np.eye(2)[[1, 0, 0, 1] * 2]
    texts = ["good", "bad", "very bad", "not bad"] * 2
    history = model.fit(texts, targets, sample_weight=[1.0, 1.0, 2.0, 0.5] * 2, verbose=0)
    assert list(history.history) == ["loss"]


def test_a_pipeline_by_hand_and_the_commands_as_functions(ran):
    folder, (*_, tuning, use, commands) = ran
    history = tuning["model"].history.history["loss"]
    assert history[-1] < history[0]
    assert BertClassifier.from_directory(folder / "models" / "sentiment").labels == ["bad", "good"]
    assert use["logits"].shape == (2, 2)
    shares = np.sum(use["outputs"]["attention_probabilities"][0], axis=-1)
    np.testing.assert_allclose(shares, 1, rtol=1e-5)
    assert commands["answers"][0]["label"] == "good"
    assert commands["report"].scores["accuracy"] == 1
    assert (folder / commands["export"].path / "saved_model.pb").is_file()


def test_pretraining(tmp_path, tokenizer, shards):
    """Its loss is the mean over words plus the mean over pairs; at the start, log V + log 2."""
    data = pretraining_batches(shards, batch_size=8, seed=1)
    pieces = BertTokenizer.from_directory(tokenizer)
    model = BertPreTrainer(BertConfig.named("tiny", vocab_size=pieces.vocabulary_size), seed=1)
    model.compile(AdamWeightDecay(WarmupLinearDecay(1e-4, warmup_steps=2, total_steps=10)))
    (loss,) = model.fit(data, steps_per_epoch=10, verbose=0).history["loss"]
    save_model(model, tmp_path / "pretrained", pieces)
    vocabulary = BertPreTrainer.from_directory(tmp_path / "pretrained").config.vocab_size
    assert loss == pytest.approx(np.log(vocabulary) + np.log(2), rel=0.1)


def test_several_labels_and_vectors(ran, monkeypatch):
    folder, _ = ran
    monkeypatch.chdir(folder)
    found = {}
    for page in ("multi-label.md", "sentence-vectors.md"):
        found[page] = {}
        for example in examples_of(DOCS / page):
            exec(compile(example, page, "exec"), found[page])
    assert (folder / "models" / "topics" / "task.json").is_file()
    vectors = found["sentence-vectors.md"]["model"]
    assert np.linalg.norm(vectors.embed(["a film"])[0]["vector"]) == pytest.approx(1, abs=1e-5)
    assert found["sentence-vectors.md"]["result"].scores["mrr"] > 0


def test_several_heads(tmp_path, pretrained, monkeypatch):
    """Both heads learn the page's sentences, and the export answers what the model does."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pretrained / "best", tmp_path / "models" / "base")
    keras.utils.set_random_seed(1)
    (block,) = examples_of(DOCS / "several-heads.md")
    found = {}
    exec(compile(block, "several-heads.md", "exec"), found)
    texts = found["texts"][:4]
    answers = Predictor(tmp_path / "saved_models" / "assistant").signature()(text=texts)
    assert [name.decode() for name in answers["intent"]] == found["intents"][:4]
    slots = [b" ".join(row).decode().rstrip() for row in answers["slots"]]
    assert slots == found["slots"][:4]
