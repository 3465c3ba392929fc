from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tiny import tiny_config

from bert_tf import BertPreTrainer, BertTokenizer
from bert_tf.commands.masked_words import MaskedWordLog, MaskedWords, hide_words


@pytest.fixture(scope="module")
def tokenizer():
    words = ["the", "man", "went", "to", "a", "store", ".", "cat", "sat", "##s", "`"]
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])


@pytest.fixture(scope="module")
def model(tokenizer):
    config = tiny_config(tokenizer.vocabulary_size, "1x16x2", max_position_embeddings=24)
    return BertPreTrainer(config, seed=3)


def test_guesses_are_the_models_best(model, tokenizer):
    texts = ["the man went to the [MASK] .", "[MASK] cat [MASK]"]
    guesses = MaskedWords(model, tokenizer, texts, guesses=3)()
    assert [len(gaps) for gaps in guesses] == [1, 2]
    ids = [2, *map(tokenizer.token_to_id, ["the", "man", "went", "to", "the"]), 4, 11, 3]
    row = tf.constant([ids])
    inputs = {"token_ids": row, "segment_ids": 0 * row, "padding_mask": 0 * row + 1}
    inputs["mask_positions"] = tf.constant([[6]])
    logits = model(inputs)["mlm_logits"][0, 0].numpy()
    probabilities = np.exp(logits) / np.exp(logits).sum()
    best = np.argsort(-probabilities)[:3]
    assert [guess.piece for guess in guesses[0][0]] == [tokenizer.vocabulary[i] for i in best]
    found = [guess.probability for guess in guesses[0][0]]
    np.testing.assert_allclose(found, probabilities[best], rtol=1e-4)


def test_rows_of_a_padded_table_are_no_guesses(model, tokenizer):
    fewer = BertTokenizer(tokenizer.vocabulary[:8])
    ((guesses,),) = MaskedWords(model, fewer, ["the [MASK]"], guesses=8)()
    assert sorted(guess.piece for guess in guesses) == sorted(fewer.vocabulary)
    assert sum(guess.probability for guess in guesses) == pytest.approx(1)


def test_guesses_are_text_in_tensorboard(model, tokenizer, tmp_path):
    """Each in a code span, or * and _ would be marks; beside the hidden word, if it is known."""
    state = SimpleNamespace(step=7, logged={})
    texts = {"the [MASK] sat": "cat"}
    words = MaskedWords(model, tokenizer, texts, guesses=tokenizer.vocabulary_size)
    log = MaskedWordLog(state, tmp_path, words)
    assert not list(tmp_path.iterdir())  # nothing before there is something to tell
    log.after_evaluation()
    assert state.logged == {"masked_words": 7}
    events = EventAccumulator(str(tmp_path / "masked_words")).Reload()
    (event,) = events.Tensors("masked_words/0")
    assert event.step == 7
    text = event.tensor_proto.string_val[0].decode()
    assert text.startswith("the **[MASK]** sat (hidden: `cat`)")
    assert text.count("%") == tokenizer.vocabulary_size
    assert "`` ` `` " in text and "`##s` " in text


def test_words_are_hidden_in_the_text_of_the_shards(tokenizer):
    ids = [
        tokenizer.token_to_id(p)
        for p in ["[CLS]", "the", "cat", "##s", "sat", ".", "[SEP]", "a", "man", ".", "[SEP]"]
    ]
    masked = list(ids)
    for place in (2, 4, 8):  # "cat ##s" is no whole word, "sat" and "man" are
        masked[place] = tokenizer.mask_token_id

    def batch(row):
        return (
            {"token_ids": tf.constant([row]), "mask_positions": tf.constant([[2, 4, 8, 0]])},
            {"mlm_logits": tf.constant([[ids[2], ids[4], ids[8], 0]])},
            {"mlm_logits": tf.constant([[1.0, 1.0, 1.0, 0.0]])},
        )

    assert hide_words([batch(masked)], tokenizer) == {"a [MASK] .": "man"}
    assert hide_words([], tokenizer) == {}
