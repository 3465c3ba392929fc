import pytest

from bert_tf.cli import main
from bert_tf.commands.shards import lost_text
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.shards.manifest import Manifest


def lost(dropped, random_next, unknown=None, **changed):
    made = PretrainingDataOptions(max_seq_length=64, **changed)
    statistics = {"dropped_token_share": dropped, "is_random_next": random_next}
    if unknown is not None:  # older manifests do not say
        statistics["unknown_token_share"] = unknown
    manifest = Manifest(
        options=made.data_settings(),
        vocabulary={},
        corpus=[],
        documents=1,
        sentences=1,
        irregularities={},
        shards={},
        statistics={"train": statistics},
        bert_tf_version="1",
    )
    return list(lost_text(manifest))


def test_usual_text_has_its_share_and_no_warning():
    assert lost(0.171, 0.55) == ["Dropped by truncation to 64 tokens: 17.1% of the text"]
    assert lost(0.0, 0.55) == []


@pytest.mark.parametrize(
    ("changed", "cures"),
    [
        ({}, "--instances full_sentences, or, if lines are paragraphs, --corpus_format text"),
        ({"corpus_format": "text"}, "--instances full_sentences"),
        (
            {"corpus_format": "text", "cut_long_sentences": False},
            "--cut_long_sentences true, or --instances full_sentences",
        ),
    ],
)
def test_much_lost_text_is_warned_of_with_a_cure(changed, cures):
    (line,) = lost(0.4, 0.55, **changed)
    assert line.startswith("Warning: 40% of the tokens were dropped")
    assert line.endswith(f": give {cures}")


def test_labels_of_one_kind_are_warned_of():
    (line,) = lost(0.0, 0.98)
    assert line.startswith("Warning: 98% of the next sentences are random")
    assert line.endswith(": give --instances full_sentences")


def test_many_unknown_tokens_are_warned_of():
    (line,) = lost(0.0, 0.55, unknown=0.985)
    assert line.startswith("Warning: 98.5% of the tokens are [UNK]")
    assert "bert-tf vocab" in line
    assert lost(0.0, 0.55, unknown=0.01) == []


def test_that_nothing_was_held_out_is_said(tmp_path, corpus, tokenizer, capsys):
    documents = corpus.read_text().split("\n\n")
    for count, is_said in ((3, True), (4, False)):
        (tmp_path / "text.txt").write_text("\n\n".join(documents[:count]))
        command = f"shards --corpus {tmp_path}/text.txt --tokenizer {tokenizer} --max_seq_length 32"
        assert main([*command.split(), "--output", str(tmp_path / str(count))]) == 0
        said = " ".join(capsys.readouterr().err.split())
        assert ("Nothing was held out for evaluation" in said) == is_said
        assert ("put blank lines between chapters, or add files" in said) == is_said
