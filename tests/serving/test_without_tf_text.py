"""The tokenizer's core operations: where TF Text is missing, text is learned and served as well."""

import json
import subprocess
import sys

import pytest
import tensorflow as tf
from tiny import tiny_config

import bert_tf
from bert_tf.errors import InputError
from bert_tf.serving.predictor import Predictor, answer_rows
from bert_tf.serving.saved_model import nodes_of, read_saved_model

WORDS = "the ship left at dawn ##s e 海 ? ."
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
TEXTS = ["The ships left.", "at Dawn? 海 É\u0301 ship\u200bs!", "", "ΑΣ the"]

# A process of its own, as others have loaded TF Text.
WITHOUT = """
import sys
sys.modules["tensorflow_text"] = None  # no import finds it
import json, pathlib
import tensorflow as tf
import bert_tf
from bert_tf.errors import InputError
from bert_tf.serving.predictor import Predictor, answer_rows
from bert_tf.tasks.signatures import RawTextModel
from bert_tf.tokenization import count_words, learn_vocabulary

core, tf_text, folder, texts = *sys.argv[1:4], json.loads(sys.argv[4])

def answers(path):
    return answer_rows(Predictor(path).signature(), {"text": texts}, 8)

pathlib.Path(folder, "answers.json").write_text(json.dumps(answers(core)))
try:
    Predictor(tf_text)
except InputError as error:
    assert "needs TF Text: pip install tensorflow-text, or export" in str(error), error
else:
    raise AssertionError("TF Text's operations are there")

words = count_words(tf.data.Dataset.from_tensor_slices(texts).batch(4))
pathlib.Path(folder, "vocab.txt").write_text("\\n".join(learn_vocabulary(words, 40)))
tokenizer = bert_tf.BertTokenizer(f"{folder}/vocab.txt")
one = tokenizer.tokenize("the ship").numpy().tolist()
assert tokenizer.tokenize(["the ship"] * 100).to_list() == [one] * 100
try:
    tokenizer.with_ops("tf_text")
except InputError as error:
    assert 'needs TF Text: pip install tensorflow-text, or give ops="core"' in str(error), error
else:
    raise AssertionError("TF Text's operations are there")

config = bert_tf.BertConfig.named("tiny", vocab_size=tokenizer.vocabulary_size)
bert_tf.save_model(bert_tf.BertEncoder(config), f"{folder}/model", tokenizer)
model = bert_tf.BertClassifier.from_preset(f"{folder}/model", labels=["a", "b"])
model.fit(texts, ["a", "b", "a", "b"], batch_size=2, verbose=0)
init = RawTextModel.__init__
RawTextModel.__init__ = lambda self, answerer, signatures: init(
    self, answerer, {"serving_default": signatures["serving_default"]}
)
model.export(f"{folder}/served/1")
labels = [x["label"] for x in answers(f"{folder}/served")]
assert labels == [x["label"] for x in model.classify(texts)]
assert "tensorflow" in sys.modules and sys.modules["tensorflow_text"] is None
"""


@pytest.fixture(scope="module")
def exports(tmp_path_factory, exports_of):
    """The same model with the tokenizer's operations of TensorFlow alone and of TF Text."""
    folder = tmp_path_factory.mktemp("model")
    model = bert_tf.BertClassifier(tiny_config(len(PIECES), initializer_range=1.0), num_classes=2)
    bert_tf.save_model(model, folder / "model", bert_tf.BertTokenizer(PIECES))
    with exports_of("serving_default"):
        return [
            bert_tf.export_model(
                model=folder / "model",
                name=ops,
                output=folder / "served",
                task="classification",
                tokenizer_ops=ops,
                verbose=False,
            ).path
            for ops in ("core", "auto")
        ]


@pytest.mark.tf_text
def test_an_export_of_core_operations_answers_as_that_of_tf_text(exports):
    core, tf_text = ({node.op for node in nodes_of(read_saved_model(x))} for x in exports)
    assert core <= {*dir(tf.raw_ops)}
    assert tf_text - {*dir(tf.raw_ops)} == {
        "FastBertNormalize",
        "FastWordpieceTokenizeWithOffsets",
    }
    assert answers(exports[0]) == answers(exports[1])


def answers(path):
    return answer_rows(Predictor(path).signature(), {"text": TEXTS}, 8)


@pytest.mark.tf_text
@pytest.mark.slow
def test_without_tf_text(exports, tmp_path):
    """Everything imports, learns, exports and answers; what needs TF Text says so."""
    arguments = [*map(str, exports), str(tmp_path), json.dumps(TEXTS)]
    subprocess.run([sys.executable, "-c", WITHOUT, *arguments], check=True, timeout=600)
    assert json.loads((tmp_path / "answers.json").read_text()) == answers(exports[1])


def test_other_operations_are_refused():
    with pytest.raises(InputError, match="ops is 'rust': give one of auto, tf_text, core"):
        bert_tf.BertTokenizer(PIECES, ops="rust")
