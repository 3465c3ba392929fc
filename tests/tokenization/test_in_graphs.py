"""The tokenizer where it has to work: eagerly, in tf.data, in tf.function, in a SavedModel."""

import doctest

import pytest
import tensorflow as tf
from preloaded import run_code

from bert_tf import BertTokenizer
from bert_tf.tokenization import AddedToken, packing
from bert_tf.tokenization import tokenizer as tokenizer_module
from bert_tf.tokenization.strings import MANY

Graph = type(tf.function(lambda: None))  # what tf.Module would export

VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##σ", "##ς", "한", "##국", "x"]
# Final sigmas, a word of 150 characters in 450 bytes, one of over 200: every branch of the graph.
TEXTS = ["A AΣ AΣΣ", "한" + "국" * 149 + " x", "", "x" * 201 + " x"]


SWITCHES = {
    "plain": {},
    "no Chinese": {"tokenize_chinese_chars": False},
    "added tokens": {
        "added_tokens": [
            AddedToken("[E1]", lstrip=True, rstrip=True),
            AddedToken("foo", single_word=True, normalized=False),
        ]
    },
}


@pytest.fixture(scope="module", params=["plain", "no Chinese"])
def tokenizer(request):
    return BertTokenizer(VOCABULARY, strip_accents=False, **SWITCHES[request.param])


IDS = [[5, 5, 7, 5, 6, 7], [8, *[9] * 149, 10], [], [1, 10]]


def test_many_texts_run_as_one_graph(tokenizer):
    """Parts of the batch run side by side; the rows are those of single calls, in their order."""
    for number in (MANY, 10 * MANY + 1):
        texts = [TEXTS[i * i % 7 % len(TEXTS)] for i in range(number)]
        expected = [IDS[TEXTS.index(text)] for text in texts]
        assert tokenizer.tokenize(texts).to_list() == expected
        assert tokenizer.tokenize(tf.constant(texts)).to_list() == expected
    assert not [name for name in dir(tokenizer) if isinstance(getattr(tokenizer, name), Graph)]


def test_in_data_pipelines(tokenizer):
    data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(3)
    data = data.map(tokenizer.tokenize, num_parallel_calls=2)
    assert data.element_spec.shape.as_list() == [None, None]
    assert data.element_spec.dtype == tf.int32
    assert [row for batch in data for row in batch.to_list()] == IDS
    single = tf.data.Dataset.from_tensor_slices(TEXTS).map(tokenizer.tokenize)
    assert [list(row) for row in single.as_numpy_iterator()] == IDS


def test_made_inside_a_function():
    @tf.function
    def tokenize(texts):
        return BertTokenizer(VOCABULARY, strip_accents=False).tokenize(texts)

    assert tokenize(tf.constant(TEXTS)).to_list() == IDS


class Served(tf.Module):
    def __init__(self, tokenizer):
        super().__init__()
        self.tokenizer = tokenizer

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(self, texts):
        ids, starts, ends = self.tokenizer.tokenize_with_offsets(texts)
        return {
            "ids": ids.to_tensor(-1),
            "starts": starts.to_tensor(-1),
            "ends": ends.to_tensor(-1),
            "texts": self.tokenizer.detokenize(ids),
        }


# Of TF Text TensorFlow Serving links these two and more; the rest must be core TensorFlow.
TEXT_OPS = {"FastBertNormalize", "FastWordpieceTokenizeWithOffsets"}

LOADED_ELSEWHERE = """
import sys
import tensorflow as tf
import tensorflow_text  # the ops, as TensorFlow Serving has them; nothing of this project
model = tf.saved_model.load(sys.argv[1])
for row in model.serve(tf.constant(sys.argv[2:]))["ids"].numpy().tolist():
    print([i for i in row if i >= 0])
"""


@pytest.mark.parametrize("tokenizer", SWITCHES, indirect=True)
def test_in_a_saved_model(tokenizer, tmp_path):
    served = Served(tokenizer)
    tf.saved_model.save(served, str(tmp_path))
    outputs = served.serve(tf.constant(TEXTS))
    starts = tf.RaggedTensor.from_tensor(outputs["starts"], padding=-1)
    assert starts.to_list() == tokenizer.tokenize_with_offsets(TEXTS)[1].to_list()
    assert outputs["texts"].numpy()[0].decode() == "a aς aσς"
    graph = served.serve.get_concrete_function().graph.as_graph_def()
    ops = {node.op for node in graph.node}
    ops |= {node.op for function in graph.library.function for node in function.node_def}
    assert {op for op in ops if not hasattr(tf.raw_ops, op)} == TEXT_OPS
    # No file to read and no table to fill where it is served.
    assert not [op for op in ops if "PyFunc" in op or "Table" in op]
    assert not any((tmp_path / "assets").glob("*"))
    if tokenizer.added_tokens:
        printed = run_code(LOADED_ELSEWHERE, [tmp_path, *TEXTS], check=True, cwd=tmp_path).stdout
        assert printed.splitlines() == [str(row) for row in IDS]


@pytest.mark.parametrize("tokenizer", SWITCHES, indirect=True)
def test_an_empty_batch(tokenizer):
    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def tokenize(texts):
        return tokenizer.tokenize_with_offsets(texts)

    assert [part.to_list() for part in tokenize(tf.constant([], tf.string))] == [[]] * 3


@pytest.mark.parametrize("module", [tokenizer_module, packing])
def test_examples_in_docstrings(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0
