import gzip
import itertools
import json
import os
from collections import Counter

import pytest
from cases import for_each, refused
from corpus_reading import documents_of

from bert_tf.errors import InputError
from bert_tf.pipelines.corpus.formats import read_slice
from bert_tf.pipelines.corpus.sources import dataset_errors, find_files, open_corpus
from bert_tf.pipelines.corpus.text_files import line_start
from bert_tf.pipelines.data_options import CorpusOptions


def test_files_of_folders_globs_and_lists_are_sorted_and_listed_once(tmp_path):
    for name in ("b.txt", "a.txt", "more/c.txt", ".hidden", "more/.cache/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("text\n")
    expected = [str(tmp_path / name) for name in ("a.txt", "b.txt", "more/c.txt")]
    assert find_files(tmp_path) == expected
    assert find_files([tmp_path / "b.txt", tmp_path, str(tmp_path / "more" / "c.txt")]) == expected
    assert find_files(str(tmp_path / "**" / "*.txt")) == expected
    assert find_files(str(tmp_path / "*.txt")) == expected[:2]
    os.mkfifo(tmp_path / "pipe")
    for given in ("-", tmp_path / "pipe", "/dev/null"):
        refused("is no file, and text is read more than once: write", find_files, given)


def test_links_to_folders_are_followed_once(tmp_path):
    folder, elsewhere = tmp_path / "text", tmp_path / "elsewhere"
    for path in (folder / "a.txt", elsewhere / "b.txt"):
        path.parent.mkdir()
        path.write_text("text\n")
    (folder / "link").symlink_to(elsewhere)
    (folder / "link too").symlink_to(elsewhere)
    (elsewhere / "loop").symlink_to(folder)
    assert find_files(folder) == [str(folder / name) for name in ("a.txt", "link/b.txt")]
    (folder / "gone.txt").symlink_to("nowhere")
    refused(r"gone\.txt: cannot be read", open_corpus, folder)
    assert open_corpus(folder, CorpusOptions(skip_unreadable=True)).unreadable


@for_each("name", "missing.txt", "*.txt", "empty")
def test_inputs_without_files_are_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    refused(name.replace("*", r"\*"), find_files, tmp_path / name)
    refused("no corpus", open_corpus, [])


def test_parquet_files_are_cut_between_row_groups(tmp_path, monkeypatch):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    texts = [f"text {i} " + "x" * (i % 50) for i in range(100)]
    table = pyarrow.table({"text": texts, "title": [None, "a"] * 50, "id": range(100)})
    path = tmp_path / "corpus.parquet"
    parquet.write_table(table, path, row_group_size=7)
    expected = [[text.strip().encode()] for text in texts]
    assert documents_of(open_corpus(path)) == expected
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 1500)
    opened = open_corpus(path)
    assert len(opened.units) > 2
    assert documents_of(opened) == expected
    assert opened.sources.total() == pytest.approx(path.stat().st_size, abs=20)
    several, counts = CorpusOptions(text_field="title, text, body"), Counter()
    with_titles = documents_of(open_corpus(path, several), counts)
    assert with_titles[:2] == [[b"text 0"], [b"a", b"text 1 x"]]
    assert counts == {"documents_without_title": 50, "documents_without_body": 100}
    with pytest.raises(InputError, match="no column 'body': name one of text, title, id"):
        documents_of(open_corpus(path, CorpusOptions(text_field="body")))
    with pytest.raises(InputError, match="row 1 from row group 0 on: no text in 'title'"):
        documents_of(open_corpus(path, CorpusOptions(text_field="title")))
    counts = Counter()
    skipping = CorpusOptions(text_field="title", skip_bad_lines=True)
    assert documents_of(open_corpus(path, skipping), counts) == [[b"a"]] * 50
    assert counts == {"bad_lines": 50}
    path.write_bytes(path.read_bytes()[:500])
    refused("not a Parquet file, or damaged", open_corpus, path)


def test_units_of_a_large_corpus_are_larger(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 100)
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.MOST_UNITS", 8)
    for index in range(50):
        (tmp_path / f"{index:02d}.txt").write_text("a b c\n\n" * 8)
    opened = open_corpus(tmp_path)
    assert opened.scale == 4  # 2,800 bytes in units of 400
    assert 4 <= len(opened.units) <= 8
    for path in sorted(tmp_path.iterdir())[7:]:
        path.unlink()
    assert open_corpus(tmp_path).scale == 1


def test_formats_are_not_mixed_and_files_are_known_by_absolute_paths(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.jsonl").write_text("{}")
    refused(r"several formats \(jsonl, sentences\)", open_corpus, tmp_path)
    # Workers run in other folders.
    (tmp_path / "a.txt").write_text("a")
    monkeypatch.chdir(tmp_path)
    assert open_corpus("a.txt").files == [str(tmp_path / "a.txt")]


@for_each("text_format", "sentences", "jsonl")
def test_large_files_are_cut_where_documents_begin(tmp_path, monkeypatch, text_format):
    if text_format == "sentences":
        text = "\n\n".join(f"{i} a\n{i} b" + "\n" * (i % 3) for i in range(500)) + "\n"
    else:
        text = "".join(json.dumps({"text": f"{i} " + "x" * (i % 70)}) + "\n" for i in range(500))
    (tmp_path / "corpus").write_text(text)
    options = CorpusOptions(corpus_format=text_format)
    whole = documents_of(open_corpus(tmp_path / "corpus", options))
    assert len(whole) == 500
    for unit in (100, 333, 2000):
        monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", unit)
        opened = open_corpus(tmp_path / "corpus", options)
        assert len(opened.units) > len(text) / unit / 2
        assert opened.sources.total() == len(text)
        parts = [
            list(lines)
            for (slice_,) in opened.units
            for passage in read_slice(slice_, options, Counter())
            for has_text, lines in itertools.groupby(passage.lines, key=bool)
            if has_text
        ]
        assert parts == whole


def test_text_without_blank_lines_is_searched_through_once(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 100)
    searched = []

    def counted(*arguments, **options):
        searched.append(arguments)
        return line_start(*arguments, **options)

    monkeypatch.setattr("bert_tf.pipelines.corpus.text_files.line_start", counted)
    (tmp_path / "a.txt").write_text("a line\n" * 1000)
    assert len(open_corpus(tmp_path).units) == 1
    assert len(searched) == 1


def test_small_files_share_a_unit_and_compressed_ones_stay_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 1000)
    for i in range(50):
        (tmp_path / f"{i:02d}.txt").write_text("x" * 97 + "\n\n")
    (tmp_path / "z.gz").write_bytes(gzip.compress(b"x\n\n" * 9000, compresslevel=0))
    opened = open_corpus(tmp_path)
    assert [len(unit) for unit in opened.units] == [10] * 5 + [1]
    assert opened.units[-1][0].end is None


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    tfds = pytest.importorskip("tensorflow_datasets")

    class Articles(tfds.core.GeneratorBasedBuilder):
        """Articles of numbered sentences."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self):
            features = dict.fromkeys(("title", "text"), tfds.features.Text())
            return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

        def _split_generators(self, dl_manager):
            return {"train": self._generate_examples(60), "test": self._generate_examples(3)}

        def _generate_examples(self, count=0):
            for i in range(count):
                yield i, {"title": f"t{i}", "text": f"Article {i} begins.\n\nIt ends."}

    folder = tmp_path_factory.mktemp("datasets")
    builder = Articles(data_dir=folder)
    builder.download_and_prepare()
    return folder


@pytest.mark.slow
def test_datasets_by_name(dataset, monkeypatch):
    def opened(name, **options):
        return open_corpus(name, CorpusOptions(tfds_data_dir=str(dataset), **options))

    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 300)
    articles = opened("tfds:articles:1.0.0")
    assert len(articles.units) > 3
    documents = documents_of(articles)
    assert len({first for first, _ in documents}) == 60
    assert all(last == b"It ends." for _, last in documents)
    assert documents_of(opened("tfds:articles:train[50%:]")) == documents[30:]
    assert len(documents_of(opened("tfds:articles:test"))) == 3
    titles = documents_of(opened("tfds:articles", text_field="title"))
    assert [b"t0"] in titles
    missing = r"tfds:articles:1.0.0:train, example 0: no text in the feature .body.: name one of"
    refused(missing, documents_of, opened("tfds:articles", text_field="body"))
    for name in ("tfds:no_such_dataset", "tfds:articles:no_split"):
        refused(f"{name}: TensorFlow Datasets cannot load it", opened, name)


@for_each("message cause", ("a\nb", "a"), ("", "ConnectionError"))
def test_a_failed_download_is_not_taken_for_a_wrong_name(message, cause):
    with (
        pytest.raises(InputError, match=rf"articles: .* \({cause}\): check the connection"),
        dataset_errors("tfds:articles"),
    ):
        raise ConnectionError(message)


def test_datasets_need_their_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match=r"pip install 'tensorflow-datasets>=4\.9\.10' "):
        open_corpus("tfds:wikipedia/20230601.en")
