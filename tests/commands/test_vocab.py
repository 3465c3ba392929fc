import json

import keras
import numpy as np
import pytest
from cases import for_each, refused
from tiny import tiny_config
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from tokenizers.implementations import BertWordPieceTokenizer

import bert_tf
from bert_tf import BertClassifier, BertPreTrainer, BertTokenizer, Predictor, load_model, save_model
from bert_tf.files.atomic import temporary_name
from bert_tf.pipelines.corpus.sources import open_corpus

WORDS = "the of and to in a is that for it as was with be by on not he i this are or his from at"


@pytest.fixture
def text(tmp_path):
    folder = tmp_path / "text"
    folder.mkdir()
    for number, word in enumerate(WORDS.split()):
        (folder / f"{number:02d}.txt").write_text(f"{word}{word} {word}\n\n" * 40)
    return folder


def test_a_sample_is_drawn_by_the_seed(text):
    corpus = open_corpus(text)
    samples = [corpus.sampled(1000, seed) for seed in (1, 1, 2)]
    sources = [[slice_.source for unit in sample.units for slice_ in unit] for sample in samples]
    assert sources[0] == sources[1] == sorted(sources[0])
    assert sources[0] != sources[2]
    for sample in samples:
        largest = max(slice_.size for unit in sample.units for slice_ in unit)
        assert 1000 <= sample.text_bytes < 1000 + largest
    assert corpus.sampled(10**9, 1).text_bytes == corpus.text_bytes


def test_a_vocabulary_of_a_sample(text, tmp_path):
    named = {"corpus": str(text), "size": 200, "verbose": False}
    whole = bert_tf.learn_vocabulary(output=tmp_path / "whole", **named)
    part = bert_tf.learn_vocabulary(output=tmp_path / "part", sample_bytes=1000, **named)
    again = bert_tf.learn_vocabulary(output=tmp_path / "again", sample_bytes=1000, **named)
    assert whole.distinct_words == 2 * len(WORDS.split())
    assert part.distinct_words < whole.distinct_words / 2
    assert part.pieces == again.pieces


def test_counts_are_kept_until_the_vocabulary_is_learned(text, tmp_path, monkeypatch):
    named = {"corpus": str(text), "output": tmp_path / "out", "verbose": False}
    expected = bert_tf.learn_vocabulary(**named | {"output": tmp_path / "expected", "size": 200})
    refused("cannot hold", bert_tf.learn_vocabulary, size=10, **named)
    assert len([*tmp_path.glob("out.counts-*.zst")]) == 1 and not (tmp_path / "out").exists()
    temporary_name(next(tmp_path.glob("out.counts-*.zst"))).touch()  # of a call that was killed
    with monkeypatch.context() as patch:
        patch.setattr("bert_tf.tokenization.count_words", None)  # not called again
        made = bert_tf.learn_vocabulary(size=200, **named)
    assert made.pieces == expected.pieces
    assert made.words == expected.words
    assert any("earlier call" in line for line in made.notices)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["expected", "out", "text"]
    refused("cannot hold", bert_tf.learn_vocabulary, size=10, overwrite=True, **named)
    (text / "00.txt").write_text("other words\n" * 40)  # their counts are of no use
    made = bert_tf.learn_vocabulary(size=200, overwrite=True, **named)
    assert "other" in "".join(made.pieces).replace("#", "")
    assert not any("earlier call" in line for line in made.notices)


def test_faults_of_the_text_are_kept_and_counts_of_another_format_not_taken(text, tmp_path):
    (text / "00.txt").write_bytes(b"plain text\n" * 40 + b"caf\xe9\n\0\n")
    named = {"corpus": str(text), "output": tmp_path / "out", "verbose": False}
    refused("cannot hold", bert_tf.learn_vocabulary, size=10, **named)
    made = bert_tf.learn_vocabulary(size=200, **named)  # of the words that were kept
    assert "Found in the text: 1 invalid utf8 lines, 1 nul bytes" in made.notices
    file = tmp_path / "text.jsonl"
    file.write_text('{"text": "words and more words"}\n' * 40)
    named = {"corpus": str(file), "output": tmp_path / "other", "verbose": False}
    refused("cannot hold", bert_tf.learn_vocabulary, size=10, corpus_format="sentences", **named)
    assert bert_tf.learn_vocabulary(size=200, **named).distinct_words == 3


def test_a_folder_that_another_makes_meanwhile_stays(text, tmp_path, monkeypatch):
    learn = bert_tf.tokenization.learn_vocabulary

    def learn_slowly(*arguments, **named):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes.txt").write_text("theirs")
        return learn(*arguments, **named)

    monkeypatch.setattr("bert_tf.tokenization.learn_vocabulary", learn_slowly)
    named = {"corpus": str(text), "size": 200, "verbose": False}
    refused(r"out: holds notes\.txt", bert_tf.learn_vocabulary, output=tmp_path / "out", **named)
    assert (tmp_path / "out" / "notes.txt").exists()


TEXTS = ["zz", "[unused0]", "ba ababab Babab! bab", "abab cabal bab", "bababa Bába"]


@pytest.fixture
def model(tmp_path):
    """A pre-training model whose files are as those of the Hugging Face hub."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", *"abcl!", "##a", "##b"]
    config = tiny_config(len(pieces))
    save_model(BertPreTrainer(config, seed=1), tmp_path / "model", BertTokenizer(pieces))
    theirs = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer()
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    theirs.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


def extend(call, model, tmp_path, line=""):
    (tmp_path / "corpus.txt").write_text("Bab babab, bababa.\nBab abab babab cabal\n\nBab\n")
    output = tmp_path / "extended"
    files = {"extend": model, "corpus": tmp_path / "corpus.txt", "output": output}
    return call(f"vocab --min_frequency 1 {line}", **files), output


def test_words_are_added_to_a_model(model, tmp_path, call):
    (_, shown), output = extend(call, model, tmp_path, "--add 3")
    assert "3 words added, now 15 pieces" in shown
    assert f"pretrain --model {output} --shards shards/" in shown
    tokenizer = BertTokenizer.from_directory(output)
    # babab saves 2 * 4 pieces, bab 3 * 2, bababa 5, abab 3
    added = [tokenizer.token_to_id(word) for word in ("babab", "bab", "bababa")]
    assert added == [5, 13, 14] and tokenizer.vocabulary_size == 15
    assert load_model(output, BertPreTrainer).config.vocab_size == 15
    theirs = BertWordPieceTokenizer(str(output / "vocab.txt"))
    read = [row.ids for row in theirs.encode_batch(TEXTS, add_special_tokens=False)]
    assert tokenizer.tokenize(TEXTS).to_list() == read
    assert not (output / "tokenizer.json").exists()  # of the old vocabulary


@pytest.mark.slow
def test_an_export_knows_the_words(model, tmp_path, call):
    """The export's probabilities are those of the ids that Hugging Face's tokenizer gives."""
    pieces = BertTokenizer.from_directory(model).vocabulary
    config = tiny_config(len(pieces), initializer_range=1.0)
    classifier = BertClassifier(config, labels=["no", "perhaps", "yes"], seed=1)
    save_model(classifier, tmp_path / "classifier", BertTokenizer(pieces))
    (model / "tokenizer.json").rename(tmp_path / "classifier" / "tokenizer.json")
    _, output = extend(call, tmp_path / "classifier", tmp_path, "--add 3")
    call("export --name words", model=output, output=tmp_path / "served")
    served = Predictor(tmp_path / "served" / "words").signature()(text=TEXTS)["probabilities"]
    theirs = BertWordPieceTokenizer(str(output / "vocab.txt"))
    extended = load_model(output)
    for row, probabilities in zip(theirs.encode_batch(TEXTS), served, strict=True):
        ids = np.array([row.ids])
        inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids**0}
        expected = np.sort(keras.ops.softmax(extended(inputs))[0])[::-1]  # the likeliest first
        np.testing.assert_allclose(probabilities, expected, atol=1e-5)


@for_each(
    "line message",
    ("--size 99", "--size cannot be combined with --extend"),
    ("--no_do_lower_case", "--no_do_lower_case cannot be combined with --extend"),
    ("--strip_accents false", "--strip_accents cannot be combined"),
    ("--min_frequency 9", "no word that occurs 9 times in the corpus has several pieces"),
)
def test_what_cannot_be_extended(model, tmp_path, call, line, message):
    assert message in extend(call.refused, model, tmp_path, line)[0]
    assert not (tmp_path / "extended").exists()


def test_models_that_cannot_be_extended(model, tmp_path, call):
    modules = [{"idx": 0, "type": f"x.{name}"} for name in ("Transformer", "Pooling", "Sparse")]
    (model / "modules.json").write_text(json.dumps(modules))
    assert "has the modules" in extend(call.refused, model, tmp_path)[0]
    (model / "modules.json").unlink()
    for name in ("vocab.txt", "tokenizer.json"):
        (model / name).unlink()
    assert "has no vocabulary to extend" in extend(call.refused, model, tmp_path)[0]
