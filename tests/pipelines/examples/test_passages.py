from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest
from cases import for_each, refused

from bert_tf.pipelines.corpus import installed_documentation as module
from bert_tf.pipelines.corpus.installed_documentation import (
    STANDARD_LIBRARY,
    LabelledDocument,
    installed_documentation,
)
from bert_tf.pipelines.examples.passages import (
    labelled_passages,
    read_labelled_documents,
    without_names,
    write_corpus,
)

SENTENCE = "This sentence of document {} speaks at some length about subject number {} only."
SIZES = {"train": 20, "validation": 5, "test": 10}


def documents(labels: int = 2, count: int = 30) -> list[LabelledDocument]:
    texts = [[[SENTENCE.format(n, i) for i in range(8)]] for n in range(labels * count)]
    return [LabelledDocument(f"label {n // count}", text) for n, text in enumerate(texts)]


@for_each(
    "text expected",
    ("Use tf.data or TensorFlow's own.", "Use data or 's own."),
    ("Tensorflows and stuff", "Tensorflows and stuff"),
    ("keras_hub models of keras hub", "models of"),
    ("np.zeros, an np array", "zeros, an array"),
)
def test_names_are_taken_out_as_words(text, expected):
    names = ["tf", "tensorflow", "keras_hub", "keras hub", "np"]
    assert without_names(text, names) == expected


def test_splits_are_balanced_and_share_no_document():
    splits, held_out = first = labelled_passages(documents(3), examples_per_label=SIZES, seed=1)
    assert labelled_passages(documents(3), examples_per_label=SIZES, seed=1) == first
    assert labelled_passages(documents(3), examples_per_label=SIZES, seed=2) != first
    seen: dict[str, set[str]] = {}
    for split, examples in splits.items():
        labels = [label for _, label in examples]
        assert {labels.count(label) for label in set(labels)} == {SIZES[split]}
        seen[split] = {passage.split()[4] for passage, _ in examples}  # the document's number
        assert all(120 <= len(passage) <= 400 for passage, _ in examples)
    assert not seen["train"] & (seen["validation"] | seen["test"])
    assert not seen["validation"] & seen["test"]
    assert {int(number) for number in seen["validation"] | seen["test"]} == held_out
    refused("give more text", labelled_passages, documents(1), examples_per_label=SIZES, seed=1)


def test_own_text_is_labelled_by_file_or_by_quarter_and_cut(tmp_path):
    for name in ("a.txt", "b.txt"):
        write_corpus(tmp_path / name, documents(1, count=8))
    files = [str(tmp_path / "a.txt"), str(tmp_path / "b.txt")]
    both = read_labelled_documents(files)
    assert [d.label for d in both] == ["a.txt"] * 8 + ["b.txt"] * 8
    assert both[0].paragraphs == documents(1, count=8)[0].paragraphs
    one = read_labelled_documents(files[:1])
    assert [d.label for d in one] == [f"part {i} of 4" for i in (1, 1, 2, 2, 3, 3, 4, 4)]
    (tmp_path / "novel.txt").write_text("A sentence of the only chapter.\n" * 2000)
    cut = read_labelled_documents([str(tmp_path / "novel.txt")])
    assert sum(len(document.paragraphs[0]) for document in cut) == 2000
    assert all(sum(map(len, document.paragraphs[0])) < 7000 for document in cut)


@pytest.mark.slow
def test_documentation_is_read_in_order_and_without_repetition(monkeypatch):
    names = ("json/", "keras/src/losses/", "numpy/linalg/")
    sources = [s for s in module._sources() if any(name in s[1].as_posix() for name in names)]
    monkeypatch.setattr(module, "_sources", lambda: iter(sources))
    modules = installed_documentation()
    first = [m.paragraphs[0][0] for m in modules]
    texts_of = [
        (package, {s for d in module._docstrings((package, path)) for s in d})
        for package, path in sources
    ]
    places = [next(n for n, (_, texts) in enumerate(texts_of) if text in texts) for text in first]
    assert len(places) > 5 and places == sorted(set(places))
    assert [m.label for m in modules] == [texts_of[place][0] for place in places]
    assert {m.label for m in modules} == {STANDARD_LIBRARY, "keras", "numpy"}
    sentences = [s for m in modules for d in m.paragraphs for s in d]
    assert any("JSON (JavaScript Object Notation)" in s for s in sentences)
    assert len(sentences) == len(set(sentences))
    assert [s for s in sentences if "\n" in s] == []


def test_processes_that_run_a_script_again_are_told_so(monkeypatch):
    class Broken(ThreadPoolExecutor):
        def map(self, *arguments, **options):
            raise BrokenProcessPool

    monkeypatch.setattr(module, "ProcessPoolExecutor", lambda mp_context: Broken())
    refused("must begin its work under if __name__ == '__main__'", installed_documentation)


@pytest.mark.slow
def test_the_corpus_is_that_of_the_dependencies_alone():
    """Test tools and other packages beside bert-tf change nothing in the demo."""
    packages = {package for package, _ in module._sources()}
    assert {STANDARD_LIBRARY, "tensorflow", "keras", "numpy"} <= packages
    assert not packages & {"_pytest", "hypothesis", "mypy", "apache_beam", "keras_nlp"}
    # Dozens of distributions share this top-level package; of these, protobuf is a dependency.
    google = [path for package, path in module._sources() if package == "google"]
    assert google and all("protobuf" in path.parts for path in google)
