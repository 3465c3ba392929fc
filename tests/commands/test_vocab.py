"""Vocabularies from a sample of the text, and what is left when the last step fails."""

import pytest

import bert_tf
from bert_tf.errors import InputError
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
    with pytest.raises(InputError, match="cannot hold"):
        bert_tf.learn_vocabulary(size=10, **named)
    assert len([*tmp_path.glob("out.counts-*.zst")]) == 1 and not (tmp_path / "out").exists()
    with monkeypatch.context() as patch:
        patch.setattr("bert_tf.tokenization.count_words", None)  # not called again
        made = bert_tf.learn_vocabulary(size=200, **named)
    assert made.pieces == expected.pieces
    assert made.words == expected.words
    assert any("earlier call" in line for line in made.notices)
    assert not [*tmp_path.glob("out.counts-*.zst")]
    with pytest.raises(InputError, match="cannot hold"):
        bert_tf.learn_vocabulary(size=10, overwrite=True, **named)
    (text / "00.txt").write_text("other words\n" * 40)  # their counts are of no use
    made = bert_tf.learn_vocabulary(size=200, overwrite=True, **named)
    assert "other" in "".join(made.pieces).replace("#", "")
    assert not any("earlier call" in line for line in made.notices)


def test_faults_of_the_text_are_counted_and_kept(text, tmp_path):
    (text / "00.txt").write_bytes(b"plain text\n" * 40 + b"caf\xe9\n\0\n")
    named = {"corpus": str(text), "output": tmp_path / "out", "verbose": False}
    with pytest.raises(InputError, match="cannot hold"):
        bert_tf.learn_vocabulary(size=10, **named)
    made = bert_tf.learn_vocabulary(size=200, **named)  # of the words that were kept
    assert "Found in the text: 1 invalid utf8 lines, 1 nul bytes" in made.notices


def test_counts_of_another_format_are_not_taken(text, tmp_path):
    """With the same file, read otherwise."""
    file = tmp_path / "text.jsonl"
    file.write_text('{"text": "words and more words"}\n' * 40)
    named = {"corpus": str(file), "output": tmp_path / "out", "verbose": False}
    with pytest.raises(InputError, match="cannot hold"):
        bert_tf.learn_vocabulary(size=10, corpus_format="sentences", **named)
    assert bert_tf.learn_vocabulary(size=200, **named).distinct_words == 3


def test_a_folder_that_another_makes_meanwhile_stays(text, tmp_path, monkeypatch):
    learn = bert_tf.tokenization.learn_vocabulary

    def learn_slowly(*arguments, **named):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "notes.txt").write_text("theirs")
        return learn(*arguments, **named)

    monkeypatch.setattr("bert_tf.tokenization.learn_vocabulary", learn_slowly)
    named = {"corpus": str(text), "size": 200, "verbose": False}
    with pytest.raises(InputError, match=r"out: holds notes\.txt"):
        bert_tf.learn_vocabulary(output=tmp_path / "out", **named)
    assert (tmp_path / "out" / "notes.txt").exists()
