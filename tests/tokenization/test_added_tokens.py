"""Added tokens against Hugging Face's `tokenizers`, and the files that record them."""

import json
import random
from dataclasses import asdict

import pytest
from tokenizers import AddedToken as HuggingFaceToken
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from bert_tf import BertTokenizer
from bert_tf.errors import InputError
from bert_tf.tokenization import AddedToken

pytestmark = pytest.mark.usefixtures("tokenizer_ops")
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [*SPECIALS, "a", "man", "e", "##1", "1", "[", "]", "f", "##o", "学", "!", "_", "-"]
MAN = "a [E1] man"
# What tokens meet: capitals, accents, white space, letters and marks beside them, one another.
PARTS = ["a", "A", " ", "  ", "\n", "\u00a0", "[E1]", "[e1]", "[E", "foo", "foob", "é!", "É"]
PARTS += ["学校", "学", "-", "_", "1", "a b", "é", "ⓐ"]
TOKENS = [
    [AddedToken("[E1]", normalized=False, special=True), AddedToken("foo", single_word=True)],
    [AddedToken("[E1]", lstrip=True), AddedToken("[E", rstrip=True), AddedToken("é!")],
    [
        AddedToken("foo", single_word=True, lstrip=True, rstrip=True, normalized=False),
        AddedToken("a b", single_word=True, normalized=False),
        AddedToken("-"),
    ],
    [AddedToken("学校"), AddedToken("é!", normalized=False), AddedToken("foob"), AddedToken("fo")],
    [AddedToken("a b", lstrip=True, rstrip=True), AddedToken("A", single_word=True)],
]


def hugging_face(tokens, **switches):
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(**switches)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_tokens([HuggingFaceToken(**asdict(token)) for token in tokens])
    return tokenizer


@pytest.mark.parametrize(
    "number", [0, 1, 2, *(pytest.param(number, marks=pytest.mark.slow) for number in (3, 4))]
)
def test_as_hugging_face(number):
    draw = random.Random(number)
    texts = ["".join(draw.choices(PARTS, k=draw.randrange(9))) for _ in range(200)]
    lower, tokens = number % 2 == 0, TOKENS[number]
    theirs = hugging_face(tokens, lowercase=lower).encode_batch(texts)
    ours = BertTokenizer(PIECES, do_lower_case=lower, added_tokens=tokens)
    rows = zip(*(x.to_list() for x in ours.tokenize_with_offsets(texts)), strict=True)
    occurring = {i for row in theirs for i in row.ids}
    assert occurring >= set(range(len(PIECES), ours.vocabulary_size))
    for text, expected, (ids, starts, ends) in zip(texts, theirs, rows, strict=True):
        before = [len(text.encode()[:i].decode(errors="ignore")) for i in range(999)]
        assert ids == expected.ids, text
        spans = [(before[a], before[b]) for a, b in zip(starts, ends, strict=True)]
        assert spans == expected.offsets, text
    assert ours.tokenize(texts).to_list() == [row.ids for row in theirs]


@pytest.mark.parametrize(
    "tokens",
    [
        # Normalization puts spaces around Chinese characters.
        [AddedToken("学校"), AddedToken("[E", rstrip=True), AddedToken("foo", lstrip=True)],
        [AddedToken("\n", normalized=False), AddedToken("é", normalized=False, rstrip=True)],
        [AddedToken("a ", normalized=False), AddedToken("-", lstrip=True, rstrip=True)],
    ],
)
def test_two_tokens_may_claim_white_space(tokens):
    draw = random.Random(1)
    texts = ["".join(draw.choices([*PARTS, "a "], k=draw.randrange(9))) for _ in range(200)]
    ours = BertTokenizer(PIECES, added_tokens=tokens)
    theirs = hugging_face(tokens, lowercase=True).encode_batch(texts)
    assert ours.tokenize(texts).to_list() == [row.ids for row in theirs]


DECODED = {"content": "[E1]", "normalized": False, "special": True, "lstrip": True}
FILES = {
    "added_tokens.json": {"[E1]": 18},
    "tokenizer_config.json": {"added_tokens_decoder": {"18": DECODED}, "do_lower_case": True},
    "special_tokens_map.json": {"additional_special_tokens": ["[E1]"]},
    "tokenizer.json": {
        "model": {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(PIECES)}},
        "normalizer": {"type": "BertNormalizer"},
        "added_tokens": [{"id": 18, **DECODED}],
    },
}


@pytest.mark.parametrize("has_vocabulary", [True, False])
@pytest.mark.parametrize("file", FILES)
def test_every_file_that_records_them(file, has_vocabulary, tmp_path):
    (tmp_path / file).write_text(json.dumps(FILES[file]))
    if has_vocabulary or file != "tokenizer.json":
        (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    tokenizer = BertTokenizer.from_directory(tmp_path)
    assert tokenizer.tokenize(MAN).numpy().tolist() == [5, 18, 6]
    assert tokenizer.id_to_token(18) == "[E1]"
    tokenizer.save(tmp_path / "saved")
    again = BertTokenizer.from_directory(tmp_path / "saved")
    assert again.settings == tokenizer.settings
    assert again.vocabulary_hash == tokenizer.vocabulary_hash
    copy = tokenizer.with_switches(special_tokens_in_text=True)
    assert copy.tokenize("[E1][MASK]").numpy().tolist() == [18, 4]
    differing = BertTokenizer(PIECES).other_switches(tokenizer.settings)
    assert differing.startswith("added_tokens (none, not AddedToken(content='[E1]'")


def test_a_piece_of_the_vocabulary_may_be_one(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{p}\n" for p in [*SPECIALS, "[E1]", "a", "man"]))
    special = {"additional_special_tokens": ["[E1]"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    tokenizer = BertTokenizer.from_directory(tmp_path)
    assert tokenizer.tokenize(MAN).numpy().tolist() == [6, 5, 7]
    token = AddedToken("[E1]", normalized=False, special=True)
    assert tokenizer.added_tokens == (token,)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("added_tokens.json", {"[E1]": 20}, r"'\[E1\]' has the id 20, and .* it is 18"),
        ("added_tokens.json", {"man": 18}, "'man' has the id 18, and in the vocabulary it is 6"),
        ("added_tokens.json", {"[E1]": "18"}, "not in Hugging Face's form"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"18": "[E1]", "19": "[E1]"}},
            r"'\[E1\]' has the ids 18 and 19",
        ),
        ("tokenizer_config.json", {"added_tokens_decoder": {"18": {"content": 1}}}, "not in Hugg"),
        ("added_tokens.json", {"\u200b": 18}, "nothing is left of the added token"),
    ],
)
def test_refused(file, content, message, tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        BertTokenizer.from_directory(tmp_path)


def test_a_model_with_fewer_embeddings(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    (tmp_path / "added_tokens.json").write_text(json.dumps({"[E1]": 18}))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 18}))
    with pytest.raises(InputError, match="has the id 18, and the model has 18 embeddings"):
        BertTokenizer.from_directory(tmp_path)
