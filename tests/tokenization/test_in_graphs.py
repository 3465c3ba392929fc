import doctest

import pytest
import tensorflow as tf

from bert_tf import BertTokenizer
from bert_tf.serving.saved_model import nodes_of, read_saved_model
from bert_tf.tokenization import AddedToken, packing
from bert_tf.tokenization import tokenizer as tokenizer_module
from bert_tf.tokenization.strings import MANY

pytestmark = pytest.mark.usefixtures("tokenizer_ops")
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
def tokenizer(request, tokenizer_ops):
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


@pytest.mark.parametrize("tokenizer", ["plain"], indirect=True)
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


@pytest.mark.parametrize("tokenizer", ["no Chinese", "added tokens"], indirect=True)
def test_in_a_saved_model(tokenizer, tokenizer_ops, tmp_path):
    """That servers have its ops, and answer without Python, is tested in tests/serving."""
    tf.saved_model.save(Served(tokenizer), str(tmp_path))
    outputs = tf.saved_model.load(str(tmp_path)).serve(tf.constant(TEXTS))
    ids, starts = (
        tf.RaggedTensor.from_tensor(outputs[name], padding=-1).to_list()
        for name in ("ids", "starts")
    )
    assert ids == IDS
    assert starts == tokenizer.tokenize_with_offsets(TEXTS)[1].to_list()
    assert outputs["texts"].numpy()[0].decode() == "a aς aσς"
    # No file to read, and with TF Text no table to fill where it is served.
    ops = {node.op for node in nodes_of(read_saved_model(tmp_path))}
    assert any("Table" in op for op in ops) == (tokenizer_ops == "core")
    assert ops <= {*dir(tf.raw_ops)} or tokenizer_ops == "tf_text"
    assert not any((tmp_path / "assets").glob("*"))


@pytest.mark.parametrize("tokenizer", ["plain", "added tokens"], indirect=True)
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
