import pytest
from shard_files import TEXT_OPTIONS, many_options, options, write_many

from bert_tf.pipelines.shards.run import write_shards
from bert_tf.tokenization import BertTokenizer

WORDS = "the of and to in a is that for it as was with be by on not he i this are or his from at"
WORDS = WORDS.split()


@pytest.fixture(scope="module")
def small_units():
    """Small units and groups, so that a small corpus has many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 8_000)
        patch.setattr("bert_tf.pipelines.corpus.documents.GROUP_BYTES", 5_000)
        yield


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A folder of four files of common words, which tests must not change."""
    folder = tmp_path_factory.mktemp("text") / "text"
    folder.mkdir()
    for file in range(4):
        documents = [
            "\n".join(
                " ".join(WORDS[(file + document * sentence + i) % len(WORDS)] for i in range(9))
                for sentence in range(12)
            )
            for document in range(20)
        ]
        (folder / f"{file}.txt").write_text("\n\n".join(documents))
    return folder


@pytest.fixture(scope="session")
def tokenizer():
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def whole_text(tmp_path_factory, text, tokenizer, small_units):
    out = tmp_path_factory.mktemp("whole") / "out"
    write_shards(text, out, tokenizer, TEXT_OPTIONS)
    return out


@pytest.fixture
def corpus(tmp_path, number_corpus):
    path = tmp_path / "corpus.txt"
    path.write_text(number_corpus(40))
    return path


@pytest.fixture(scope="session")
def write(number_tokenizer):
    def write(inputs, output, made_of=None, **named):
        made_of = made_of or options()
        return write_shards(inputs, output, number_tokenizer, made_of, **named)[0]

    return write


@pytest.fixture(scope="session")
def many(tmp_path_factory, number_corpus):
    """Five files of thirty documents, which tests must not change."""
    return write_many(tmp_path_factory.mktemp("corpora") / "many", number_corpus)


@pytest.fixture(scope="module")
def whole_many(tmp_path_factory, many, number_tokenizer, small_units):
    out = tmp_path_factory.mktemp("whole") / "out"
    write_shards(many, out, number_tokenizer, many_options())
    return out
