"""Words of a domain in a pre-trained vocabulary: which, where, and with what rows."""

import numpy as np
from cases import for_each
from tiny import tiny_config

from bert_tf import BertTokenizer
from bert_tf.checkpoints.added_words import add_words, costly_words, pieces_per_word
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.tokenization import AddedToken

TABLE, BIAS = "embeddings.word_embeddings.weight", "cls.predictions.bias"
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LETTERS = [*"abcx", *(f"##{c}" for c in "abcx"), "ab", "─", "##─"]
PIECES = [*SPECIALS, "[unused0]", *LETTERS, "[unused1]", "[unused7]", "[unused]"]


def test_words_that_save_most_pieces_come_first():
    counts = {
        "ab": 99,  # one piece
        "d": 99,  # [UNK], which is one piece
        "ba": 6,  # 6 pieces saved
        "abcabc": 2,  # 8: ab ##c ##a ##b ##c
        "acc": 3,  # 6
        "cc": 1,
        "──": 50,
        "a" * 101: 9,
        "xcab": 20,  # holds an added token
    }
    tokenizer = BertTokenizer(PIECES, added_tokens=[AddedToken("XC")])
    assert costly_words(counts, tokenizer, 9) == ["abcabc", "acc", "ba", "cc"]
    assert costly_words(counts, tokenizer, 2) == ["abcabc", "acc"]
    assert costly_words(counts, tokenizer, 9, min_frequency=3) == ["acc", "ba"]
    assert pieces_per_word({"ab": 3, "ba": 1}, tokenizer) == 1.25


@for_each("encoders", 1, 2)
def test_unused_pieces_first_with_the_mean_of_the_pieces(encoders):
    """Of one encoder, and of two with a table each; the table has a row more than pieces."""
    tokens = [AddedToken("[unused1]", normalized=False), AddedToken("behind all")]
    tokenizer = BertTokenizer(PIECES, added_tokens=tokens)
    rows = len(PIECES) + 2
    draw = np.random.default_rng(1)
    shape = (encoders, rows, 4) if encoders > 1 else (rows, 4)
    table, bias = (draw.normal(size=s).astype(np.float32) for s in (shape, shape[:-1]))
    model = StoredModel(tiny_config(rows), {TABLE: table, BIAS: bias})
    words = ["abc", "ba", "ca", "xx"]
    extended = add_words(model, tokenizer, words)

    ids = [PIECES.index("[unused0]"), PIECES.index("[unused7]"), rows - 1, rows]
    assert extended is model.tokenizer
    found = extended.tokenize([f"{w} behind all" for w in words]).to_list()
    assert found == [[i, rows - 2] for i in ids]
    assert extended.settings == tokenizer.settings
    kept = [i for i in range(rows - 1) if i not in ids]
    assert [extended.vocabulary[i] for i in kept] == [tokenizer.vocabulary[i] for i in kept]
    assert model.config.vocab_size == rows + 1
    biases = (bias[..., None], model.tensors[BIAS][..., None])
    for old, new in ((table, model.tensors[TABLE]), biases):
        np.testing.assert_array_equal(new[..., kept, :], old[..., kept, :])
        for number, parts in zip(ids, tokenizer.tokenize(words).to_list(), strict=True):
            mean = old[..., parts, :].astype(np.float64).mean(-2)
            np.testing.assert_allclose(new[..., number, :], mean, rtol=1e-6, atol=1e-7)


def test_a_model_without_a_masked_word_head_and_with_enough_rows():
    tokenizer = BertTokenizer(PIECES)
    table = np.ones((len(PIECES) + 8, 4), np.float32)
    model = StoredModel(tiny_config(len(table)), {TABLE: table})
    add_words(model, tokenizer, ["ba"])
    assert model.tensors.keys() == {TABLE}
    assert model.config.vocab_size == len(table) and model.tensors[TABLE].shape == table.shape
