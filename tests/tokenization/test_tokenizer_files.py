import hashlib
import json
import os

import pytest
import tensorflow as tf
from tokenizers.processors import TemplateProcessing

from bert_tf import BertTokenizer
from bert_tf.errors import InputError

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
DEFAULTS = {"do_lower_case": True, "strip_accents": None}
DEFAULTS |= {"tokenize_chinese_chars": True, "special_tokens_in_text": False}


def write(path, *pieces):
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return path


def test_attributes(tmp_path):
    pieces = ["a", "[MASK]", "[SEP]", "##b", "[UNK]", "[PAD]", "[CLS]"]
    path = write(tmp_path / "vocab.txt", *pieces)
    tokenizer = BertTokenizer(str(path), do_lower_case=True)
    assert tokenizer.vocabulary == pieces
    assert tokenizer.vocabulary_size == 7
    assert tokenizer.vocabulary_hash == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("[PAD]", 5)
    assert (tokenizer.unk_token, tokenizer.unk_token_id) == ("[UNK]", 4)
    assert (tokenizer.cls_token, tokenizer.cls_token_id) == ("[CLS]", 6)
    assert (tokenizer.sep_token, tokenizer.sep_token_id) == ("[SEP]", 2)
    assert (tokenizer.mask_token, tokenizer.mask_token_id) == ("[MASK]", 1)
    assert tokenizer.token_to_id("##b") == 3
    assert tokenizer.id_to_token(3) == "##b"
    assert tokenizer.settings == DEFAULTS
    with pytest.raises(InputError, match="no piece 'c'"):
        tokenizer.token_to_id("c")
    with pytest.raises(InputError, match="ids go from 0 to 6"):
        tokenizer.id_to_token(7)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_line_ends_of_any_system(tmp_path, line_end):
    path = tmp_path / "vocab.txt"
    path.write_bytes(line_end.join([*SPECIALS, "a", "é", ""]).encode("utf-8-sig"))
    tokenizer = BertTokenizer(path)
    assert tokenizer.vocabulary == [*SPECIALS, "a", "é"]
    assert tokenizer.vocabulary_hash == BertTokenizer([*SPECIALS, "a", "é"]).vocabulary_hash


@pytest.mark.parametrize("content", [b"a\rb\nc\n", b"a\r\nb\nc\r\n", b"a\r\r\nb\r\r\n"])
def test_mixed_line_ends_are_refused_as_readers_disagree_about_ids(tmp_path, content):
    path = tmp_path / "vocab.txt"
    path.write_bytes("".join(f"{piece}\n" for piece in SPECIALS).encode() + content)
    with pytest.raises(InputError, match=r"line \d ends otherwise than the others"):
        BertTokenizer(path)
    with pytest.raises(InputError, match="line 6 holds a piece with a line end"):
        BertTokenizer([*SPECIALS, "a\rb"])


def test_white_space_around_a_piece_is_dropped_as_in_the_original(tmp_path):
    """Unless it is all of the piece, which then keeps its id."""
    path = write(
        tmp_path / "vocab.txt", *SPECIALS, "\u3000", " ", "a b", "the ", "\t##m", "a\u00a0"
    )
    tokenizer = BertTokenizer(path)
    assert tokenizer.tokenize(["them a\u3000a b"]).to_list() == [[8, 9, 10, 10, 1]]
    assert tokenizer.token_to_id("\u3000") == 5


def test_pieces_that_no_text_becomes_are_counted(caplog):
    BertTokenizer([*SPECIALS, "a", "Stadt", "für", "か\u3099", "[E1]"])
    (message,) = caplog.messages
    assert message.startswith("3 pieces of the vocabulary never occur")
    assert "'Stadt', 'für', 'か\u3099'" in message
    caplog.clear()
    BertTokenizer([*SPECIALS, "a", "Stadt", "für"], do_lower_case=False)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("name", "pieces", "is_uncased"),
    [
        ("mine", ["a", "B"], False),
        ("mine", ["a"], True),
        ("german-cased", ["a"], False),
        ("uncased_L-2", ["a", "B"], True),
        ("uncased_L-2/german-cased", ["a"], False),  # the nearest name counts
        ("wwm_uncased_L-24_H-1024_A-16", ["a", "B"], True),
        ("chinese_L-12_H-768_A-12", ["a", "B"], True),
        ("multilingual_L-12_H-768_A-12", ["a", "B"], True),
        ("multi_cased_L-12_H-768_A-12", ["a"], False),
        ("showcased", ["a"], True),
    ],
)
def test_casing_of_a_folder_that_does_not_say(name, pieces, is_uncased, tmp_path):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    path = write(folder / "vocab.txt", *SPECIALS, *pieces)
    assert BertTokenizer.from_directory(folder).settings["do_lower_case"] is is_uncased
    assert BertTokenizer.from_directory(path).settings["do_lower_case"] is is_uncased


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "BertJapaneseTokenizer"}, "BertJapanese"),
        ("config.json", {"tokenizer_class": "XLMRobertaTokenizer"}, "needs a XLMRoberta"),
        ("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"}, "needs a Pre"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["a.B", None]}}, "code of its"),
        ("tokenizer_config.json", {"do_basic_tokenize": False}, "do_basic_tokenize is False"),
        ("tokenizer_config.json", {"cls_token": "<s>"}, "cls_token is '<s>'"),
        ("special_tokens_map.json", {"mask_token": {"content": "<m>"}}, "mask_token is '<m>'"),
        ("tokenizer_config.json", {"truncation_side": "left"}, "truncation_side is 'left'"),
        ("tokenizer_config.json", {"never_split": ["e-mail"]}, "never_split names 'e-mail'"),
        ("tokenizer_config.json", {"added_tokens_decoder": ["a"]}, "decoder is no dict: restore"),
        ("tokenizer_config.json", [], r"_config\.json holds no JSON object"),
        ("tokenizer_config.json", {"do_lower_case": "yes"}, "do_lower_case is 'yes'; make it"),
        ("tokenizer_config.json", {"tokenize_chinese_chars": None}, "_chinese_chars is None"),
    ],
)
def test_settings_that_are_not_bert_s_are_refused_by_name(file, content, message, tmp_path):
    write(tmp_path / "vocab.txt", *SPECIALS, "a")
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(InputError, match=message) as raised:
        BertTokenizer.from_directory(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["BertTokenizerFast", "ElectraTokenizer", None])
def test_other_names_of_the_same_tokenizer(name, tmp_path):
    write(tmp_path / "vocab.txt", *SPECIALS, "a")
    content = {"tokenizer_class": name, "never_split": None, "cls_token": {"content": "[CLS]"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(content))
    assert BertTokenizer.from_directory(tmp_path).vocabulary_size == 6


def test_sentence_transformers_may_lower_case(tmp_path):
    write(tmp_path / "vocab.txt", *SPECIALS, "é", "e")
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    (tmp_path / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    tokenizer = BertTokenizer.from_directory(tmp_path)
    assert tokenizer.tokenize(["É E"]).to_list() == [[5, 6]]


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([], "holds no pieces"),
        (
            [*SPECIALS, "a", "b", "a"],
            r"line 8 repeats line 6, 'a'; put another in line 6, such as \[unused line 6\]",
        ),
        ([*SPECIALS, "", "a", "", "b"], r"line 6 holds no piece; .*\[unused line 6\]"),
        ([*SPECIALS, "\u2581the", "s"], "its pieces mark where words begin"),
        (["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a"], r"lacks \[MASK\]; add a line"),
        (["a"], r"lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
        (SPECIALS, "Give it pieces beside the special tokens"),
    ],
)
def test_unusable_vocabularies(tmp_path, pieces, message):
    with pytest.raises(InputError, match=message) as raised:
        BertTokenizer(write(tmp_path / "vocab.txt", *pieces))
    assert "\n" not in str(raised.value)
    with pytest.raises(InputError, match=message):
        BertTokenizer(pieces)


def test_directories(tmp_path):
    write(tmp_path / "vocab.txt", *SPECIALS, "A", "é")
    cased = DEFAULTS | {"do_lower_case": False}
    assert BertTokenizer.from_directory(tmp_path).settings == cased
    config = dict.fromkeys(("do_lower_case", "strip_accents", "tokenize_chinese_chars"), False)
    config |= {"model_max_length": 77, "name_or_path": "mine"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = BertTokenizer.from_directory(str(tmp_path))
    assert tokenizer.tokenize(["A a é"]).to_list() == [[5, 1, 6]]

    saved = tmp_path / "saved"
    tokenizer.save(saved)
    written = json.loads((saved / "tokenizer_config.json").read_text())
    assert written == {
        **config,
        "special_tokens_in_text": False,
        "tokenizer_class": "BertTokenizer",
        **{f"{token[1:-1].lower()}_token": token for token in SPECIALS},
    }
    loaded = BertTokenizer.from_directory(saved)
    assert loaded.settings == tokenizer.settings
    assert loaded.vocabulary_hash == tokenizer.vocabulary_hash
    loaded.save(saved, model_max_length=512)
    written = json.loads((saved / "tokenizer_config.json").read_text())
    assert (written["model_max_length"], written["name_or_path"]) == (512, "mine")
    assert sorted(path.name for path in saved.iterdir()) == ["tokenizer_config.json", "vocab.txt"]


def template(single: str, pair: str) -> dict:
    processor = TemplateProcessing(
        single=single, pair=pair, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return json.loads(processor.__getstate__())


def test_a_template_of_one_text_alone_says_nothing_of_pairs(tmp_path):
    values = {
        "model": {"type": "WordPiece", "vocab": {p: i for i, p in enumerate([*SPECIALS, "b"])}},
        "normalizer": {"type": "BertNormalizer"},
        "post_processor": template("[CLS] $A [SEP]", "$A $B:1"),  # the pair by default
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    assert BertTokenizer.from_directory(tmp_path).vocabulary_size == 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": ["WordPiece"]}, "holds a None tokenizer, not BERT's"),
        ({"normalizer": "BertNormalizer"}, "normalizer is None, but only 'BertNormalizer' is"),
        ({"normalizer": {"type": "Sequence"}}, "normalizer is 'Sequence'"),
        (
            {"model": {"type": "WordPiece", "vocab": {"a": 0}, "max_input_chars_per_word": 20}},
            "max_input_chars_per_word is 20, but only 200",
        ),
        ({"model": {"type": "WordPiece"}}, "its vocabulary is not in the form of"),
        ({"model": {"type": "WordPiece", "vocab": ["[PAD]"]}}, "its vocabulary is not in"),
        ({"model": {"type": "WordPiece", "vocab": {"a": None, "b": 1}}}, "its vocabulary is not"),
        ({"added_tokens": ["[PAD]"]}, "its vocabulary is not in the form of"),
        ({"added_tokens": [{"content": "[PAD]", "id": 7}]}, "its ids do not run from 0 to 1"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "pre_tokenizer is 'Whitespace'"),
        ({"pre_tokenizer": None}, "pre_tokenizer is None"),
        ({"post_processor": template("[CLS] $A [SEP]", "[CLS] $A [SEP] [SEP] $B [SEP]")}, "B:0"),
        ({"post_processor": template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]")}, "B:0"),
        ({"post_processor": template("[CLS] $A", "[CLS] $A [SEP] $B:1 [SEP]:1")}, "A:0', 'B:1'"),
        ({"post_processor": {"type": "RobertaProcessing"}}, "post_processor is"),
        (
            {"post_processor": {"type": "BertProcessing", "cls": ["<s>", 0], "sep": ["[SEP]", 1]}},
            "post_processor is",
        ),
        ({"normalizer": {"type": "BertNormalizer", "clean_text": False}}, "clean_text is False"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [1]}}, "post_processor is"),
    ],
)
def test_other_forms_of_tokenizer_json_are_refused(changed, message, tmp_path):
    values = {
        "model": {"type": "WordPiece", "vocab": {"a": 0}},
        "normalizer": {"type": "BertNormalizer"},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(values | changed))
    with pytest.raises(InputError, match=message):
        BertTokenizer.from_directory(tmp_path)


def test_two_vocabularies_in_a_folder_must_agree(tmp_path):
    write(tmp_path / "vocab.txt", *SPECIALS, "a", "b")
    values = {
        "model": {"type": "WordPiece", "vocab": {p: i for i, p in enumerate([*SPECIALS, "b"])}},
        "normalizer": {"type": "BertNormalizer", "lowercase": False},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match=r"line 6 is 'a', and tokenizer\.json beside it has 'b'"):
        BertTokenizer.from_directory(tmp_path)
    write(tmp_path / "vocab.txt", *SPECIALS, "b")
    assert BertTokenizer.from_directory(tmp_path).settings["do_lower_case"] is False


def test_unreadable_vocabularies(tmp_path):
    with pytest.raises(InputError, match="none: no such folder"):
        BertTokenizer.from_directory(tmp_path / "none")
    with pytest.raises(InputError, match=r"vocab\.txt: no such file"):
        BertTokenizer.from_directory(tmp_path)
    path = write(tmp_path / "large.txt", *SPECIALS)
    os.truncate(path, 2**30)  # a file with a hole, which takes no room
    with pytest.raises(InputError, match=r"large\.txt: not a regular file of at most 100 MB; give"):
        BertTokenizer(path)
    with pytest.raises(InputError, match=r"none\.txt: no such file; give the path"):
        BertTokenizer(tmp_path / "none.txt")
    with pytest.raises(InputError, match="Is a directory"):
        BertTokenizer(tmp_path)
    path = tmp_path / "latin1.txt"
    path.write_bytes(b"[PAD]\n\xe9\n")
    with pytest.raises(InputError, match=r"latin1\.txt: line 2 is not UTF-8"):
        BertTokenizer(path)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([1, 2], "give it a str"),
        ([["a"], ["b", "c"]], "give it a str"),
        (["a", None], "give it a str"),
        (None, "give it a str"),
        (tf.constant([1, 2]), "not int32; pass raw text"),
        ([["a"]], r"of shape \[batch\], not \(1, 1\)"),
        (tf.ragged.constant([["a"], []]), r"of shape \[batch\]"),
    ],
)
def test_what_is_no_batch_of_texts(texts, message):
    with pytest.raises(InputError, match=f"the tokenizer takes strings.* {message}"):
        BertTokenizer([*SPECIALS, "a"]).tokenize(texts)
