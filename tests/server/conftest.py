"""What the tests of the server share: one tiny export."""

import asyncio
import inspect
from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

from bert_tf import BertConfig, BertTokenizer
from bert_tf.models.answerer import Answerer
from bert_tf.models.task_models import BertClassifier
from bert_tf.serving.export import export
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.signatures import DEFAULT, TEXTS, RawTextModel, Signature
from bert_tf.tasks.table import TASKS


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "farm", "the", "é", "。"]


@pytest.fixture(scope="session")
def saved_models(made_once) -> Path:
    """A folder with version 1 of the classifier `where`, which takes `text`."""

    def make(folder: Path) -> None:
        config = BertConfig(
            vocab_size=len(PIECES),
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            initializer_range=1.0,
        )
        labels = ["land", "wasser", "日"]
        kind, tokenizer = Classification(), BertTokenizer(PIECES)
        model = BertClassifier(config, labels=labels, seed=0)
        signature = Signature(
            {"text": TEXTS},
            lambda texts, _: kind.answers(model(kind.model_inputs(texts, tokenizer, 8)), labels),
        )
        module = RawTextModel(
            Answerer(TASKS["classification"], model, tokenizer), {DEFAULT: signature}
        )
        export(module, "where", root=folder)

    return made_once("served", make)


class Toy(tf.Module):
    """Signatures of every method that cost nothing: a text's letters, an example's number `x`."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = tf.Variable(1.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def letters(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        letters = tf.strings.unicode_split(text, "UTF-8", errors="strict")
        return {
            "text": text,
            "letters_count": tf.cast(letters.row_lengths(), tf.int32),
            "letters_text": letters.to_tensor(),
            "length": self.scale * tf.cast(letters.row_lengths(), tf.float32),
        }

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def classify(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        x = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([1], tf.float32)})["x"]
        scores = self.scale * tf.concat([x, -x], axis=1)
        return {"classes": tf.fill(tf.shape(scores), "c"), "scores": scores}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "inputs")])
    def regress(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"outputs": self.classify(inputs)["scores"][:, 0]}


@pytest.fixture(scope="session")
def toys(made_once) -> Path:
    """A folder with version 1 of the model `toy`. Copy it to change it."""

    def make(folder: Path) -> None:
        toy, version = Toy(), folder / "toy" / "1"
        signatures = {"serving_default": toy.letters, "classify": toy.classify}
        signatures["regress"] = toy.regress
        tf.saved_model.save(toy, str(version), signatures=signatures)
        proto = SavedModel.FromString((version / "saved_model.pb").read_bytes())
        for method in ("classify", "regress"):
            signature = proto.meta_graphs[0].signature_def[method]
            signature.method_name = f"tensorflow/serving/{method}"
        (version / "saved_model.pb").write_bytes(proto.SerializeToString())

    return made_once("toys", make)
