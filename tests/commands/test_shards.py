import textwrap

from cases import for_each

from bert_tf.cli import main
from bert_tf.commands.shards import lost_text
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.shards.manifest import Manifest

CUT = "--cut_long_sentences true, or --instances full_sentences"


def lost(dropped, random_next, unknown=None, **changed):
    made = PretrainingDataOptions(max_seq_length=64, **changed)
    statistics = {"dropped_token_share": dropped, "is_random_next": random_next}
    if unknown is not None:  # older manifests do not say
        statistics["unknown_token_share"] = unknown
    empty = {"vocabulary": {}, "corpus": [], "irregularities": {}, "shards": {}}
    counts = {"documents": 1, "sentences": 1, "bert_tf_version": "1"}
    said = {"options": made.data_settings(), "statistics": {"train": statistics}}
    return list(lost_text(Manifest(**said, **empty, **counts)))


def test_usual_text_has_its_share_and_what_is_unusual_a_warning():
    (line,) = lost(0.171, 0.55)
    assert line.startswith("17.1% of the tokens are in no instance: what is longer than 64 tokens")
    assert line.endswith("give --instances full_sentences")
    assert lost(0.0, 0.55) == []
    (line,) = lost(0.0, 0.98)
    assert line.startswith("Warning: 98% of the next sentences are random")
    assert line.endswith(": give --instances full_sentences")
    (line,) = lost(0.0, 0.55, unknown=0.985)
    assert line.startswith("Warning: 98.5% of the tokens are [UNK]")
    assert "bert-tf vocab" in line
    assert lost(0.0, 0.55, unknown=0.01) == []


@for_each(
    "changed cures",
    ({}, "--instances full_sentences, or, if lines are paragraphs, --corpus_format text"),
    ({"corpus_format": "text"}, "--instances full_sentences"),
    ({"corpus_format": "text", "cut_long_sentences": False}, CUT),
)
def test_much_lost_text_is_warned_of_with_a_cure(changed, cures):
    (line,) = lost(0.4, 0.55, **changed)
    assert line.startswith("Warning: 40% of the tokens were dropped")
    assert line.endswith(f": give {cures}")


def test_that_nothing_was_held_out_is_said(tmp_path, corpus, tokenizer, capsys):
    documents = corpus.read_text().split("\n\n")
    for count, is_said in ((3, True), (4, False)):
        (tmp_path / "text.txt").write_text("\n\n".join(documents[:count]))
        command = f"shards --corpus {tmp_path}/text.txt --tokenizer {tokenizer} --max_seq_length 32"
        assert main([*command.split(), "--output", str(tmp_path / str(count))]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert ("Nothing was held out for evaluation" in said) == is_said
        assert ("put blank lines between chapters, or add files" in said) == is_said


@for_each("chosen", "sentences", "text")
def test_the_format_that_the_text_has_is_chosen_and_said(chosen, corpus, tokenizer, tmp_path, call):
    """The shards are those of the format by its name, whatever makes them."""
    (tmp_path / "text").mkdir()
    is_text = chosen == "text"
    for number, document in enumerate(corpus.read_text().split("\n\n")[:8]):
        lines = textwrap.fill(document.replace("\n", " "), 60) if is_text else document
        (tmp_path / "text" / f"{number}.txt").write_text(lines)
    given = {"corpus": tmp_path / "text", "tokenizer": tokenizer, "max_seq_length": 32}
    _, said = call("shards", **given, output=tmp_path / "auto")
    _, named = call("shards", **given, output=tmp_path / "named", corpus_format=chosen)
    chose = f"(--corpus_format {chosen}"
    assert chose in " ".join(said.split()) and chose not in " ".join(named.split())
    for part in ("1/2", "2/2") if is_text else ():
        call("shards", **given, output=tmp_path / "jobs", units=part)
    if is_text:
        call("shards --finish", **given, output=tmp_path / "jobs")
    expected = {x.name: x.read_bytes() for x in (tmp_path / "named").glob("*.tfrecord")}
    for made in ("auto", "jobs") if is_text else ("auto",):
        assert {x.name: x.read_bytes() for x in (tmp_path / made).glob("*.tfrecord")} == expected
        assert Manifest.load(tmp_path / made).data_options.corpus_format == chosen
