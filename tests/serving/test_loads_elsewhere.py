"""Exports load where users run them: without TensorFlow's Python, in its tools, in its server."""

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from bert_tf import BertConfig, BertTokenizer
from bert_tf.serving.predictor import Predictor
from bert_tf.serving.server.saved_model import LoadedModel
from bert_tf.serving.warmup import requests
from bert_tf.tasks.fine_tuned import FineTuned
from bert_tf.tasks.table import TASKS

PIECES = [
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "ship", "left", "harbour", "at", "dawn",
    "##s", "sea", "crew", "set", "sail", "when", "did", "leave", "?", ".", "é", "海",
]  # fmt: skip
LABELS = {
    "classification": ["bad", "good"],
    "tagging": ["O", "B-LOC", "I-LOC"],
    "conll2003": ["O", "B-LOC", "I-LOC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-MISC", "I-MISC"],
}
KINDS = ["classification", "regression", "choice", "squad2", "tagging", "masked_words"]


@pytest.fixture(scope="module")
def export_of(tmp_path_factory):
    """Makes the export of a task with random weights, once."""
    made: dict[str, Path] = {}
    root = tmp_path_factory.mktemp("served")

    def make(name: str) -> Path:
        if name not in made:
            config = BertConfig(
                vocab_size=len(PIECES), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
                intermediate_size=16, max_position_embeddings=64, initializer_range=1.0,
            )  # fmt: skip
            task = TASKS[name].with_settings({"max_length": 32})
            head = {"labels": LABELS[name]} if name in LABELS else {}
            model = task.kind.model_class(config, seed=0, **head)
            tuned = FineTuned(task, model, BertTokenizer(PIECES), LABELS.get(name, []))
            made[name] = tuned.export(name, root=root)
        return made[name]

    return make


def tensors_of(request, signature) -> dict:
    """A request as c_api.py reads it."""
    inputs = []
    for name, values in request.inputs.items():
        flat = values.reshape(-1).tolist()
        if values.dtype == object:
            flat = [base64.b64encode(text).decode() for text in flat]
        info = signature.inputs[name]
        inputs.append(
            {"name": info.name, "dtype": info.dtype, "shape": values.shape, "values": flat}
        )
    return {"inputs": inputs, "outputs": [info.name for info in signature.outputs.values()]}


def test_the_c_api_answers_to_the_bit(export_of):
    check_c_api(export_of("classification"))


@pytest.mark.slow
@pytest.mark.parametrize("task", KINDS[1:])
def test_the_c_api_answers_to_the_bit_for_every_kind(export_of, task):
    check_c_api(export_of(task))


def check_c_api(directory: Path) -> None:
    model, predictor = LoadedModel(directory), Predictor(directory)
    model.close()
    tokenizer = BertTokenizer.from_directory(directory / "assets.extra")
    made = list(requests(model.signatures, tokenizer, 64))
    asked = [tensors_of(request, model.signatures[request.signature_name]) for request in made]
    libraries = Path(tf.__file__).parents[1]
    script = Path(__file__).with_name("c_api.py")
    done = subprocess.run(
        [sys.executable, "-I", script, libraries, directory],
        input=json.dumps(asked), capture_output=True, text=True, check=False,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for request, answer in zip(made, json.loads(done.stdout), strict=True):
        outputs = model.signatures[request.signature_name].outputs
        inputs = {name: tf.constant(values) for name, values in request.inputs.items()}
        expected = predictor.signatures[request.signature_name](**inputs)
        for name, found in zip(outputs, answer, strict=True):
            value = expected[name].numpy()
            assert list(value.shape) == found["shape"], (request.signature_name, name)
            if value.dtype == object:
                own = [base64.b64encode(each).decode() for each in value.reshape(-1).tolist()]
            else:
                own = base64.b64encode(value.tobytes()).decode()
            assert found["values"] == own, (request.signature_name, request.size, name)


# The tool does not load TF Text, whose two ops the graph holds.
_CLI = (
    "import sys, tensorflow_text; from tensorflow.python.tools.saved_model_cli import main; main()"
)


def saved_model_cli(*arguments: object) -> str:
    command = [sys.executable, "-c", _CLI, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
def test_saved_model_cli_shows_and_runs(export_of):
    directory = export_of("classification")
    shown = saved_model_cli("show", "--dir", directory, "--all")
    assert "signature_def['serving_default']" in shown
    assert "inputs['text'] tensor_info" in shown
    ran = saved_model_cli(
        "run", "--dir", directory, "--tag_set", "serve", "--signature_def", "serving_default",
        "--input_exprs", 'text=["The ship left the harbour.", "海"]',
    )  # fmt: skip
    predictor = Predictor(directory).signatures["serving_default"]
    label = predictor(text=tf.constant(["The ship left the harbour.", "海"]))["label"].numpy()
    assert str(label) in ran
    np.testing.assert_equal(label.shape, (2,))
