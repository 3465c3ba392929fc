import shlex
import shutil
import unicodedata
from pathlib import Path

from cases import for_each
from command_line import run


def left_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


OUTPUTS = [(".", "holds the input"), ("tokenizer", "is the input")]
OUTPUTS += [("notes", "holds mine.txt, which this command did not make")]


@for_each("output expected", *OUTPUTS)
def test_overwrite_deletes_no_input_and_nothing_of_others(
    output, expected, corpus, tokenizer, tmp_path, monkeypatch, call
):
    (tmp_path / "text").mkdir()
    shutil.copy(corpus, tmp_path / "text" / "a.txt")
    shutil.copytree(tokenizer, tmp_path / "tokenizer")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    before = left_in(tmp_path)
    if output != "tokenizer":
        line = call.refused("vocab --corpus text --overwrite", output=output)
        assert expected in line and output in line
    line = call.refused("shards --corpus text --tokenizer tokenizer --overwrite", output=output)
    assert output in line
    assert left_in(tmp_path) == before


@for_each(
    "text example",
    ("한국어 형태소를 분석한다.", "한국어 -> ᄒ ᅡ ᆫ ᄀ ᅮ ᆨ ᄋ ᅥ"),
    ("ภาษาไทยมีสระและวรรณยุกต์ ที่นี่", "ที่นี่ -> ทน"),
    ("ที่นี่" * 9, f"({'ที่นี่' * 4} -> {'ทน' * 4})"),  # cut where it is shown
    ("Tiếng Việt có nhiều dấu", "tiếng -> tieng"),
    ("Der Bär ging für immer nach Köln", "bär -> bar"),
    ("The café is plain English without any accents. " + "So is most of it. " * 20, None),
    ("I \u2764\ufe0f it 1\ufe0f\u20e3 \u2600\ufe0f", None),
    ids=["Korean", "Thai", "Thai without spaces", "Vietnamese", "German", "English", "emoji"],
)
def test_vocab_proposes_the_switch_that_the_text_needs(text, example, tmp_path, call):
    (tmp_path / "text.txt").write_text((text + "\n") * 3, encoding="utf-8")
    _, said = call("vocab --size 500", corpus=tmp_path / "text.txt", output=tmp_path / "vocab")
    told = " ".join(said.split())
    assert ("--strip_accents false" in told) == bool(example)
    assert not example or example in told
    proposed = said.partition("Next: ")[2].splitlines()[0]
    if text.startswith("Tiếng"):  # the command that is proposed keeps what it said was lost
        _, said = call("", *shlex.split(proposed)[1:])
        assert "fall apart" not in said
        proposed = said.partition("Next: ")[2].splitlines()[0]
    assert (" shards --corpus " in proposed) == (not example or text.startswith("Tiếng"))


def test_vocab_proposes_nfc_for_text_in_nfd(tmp_path, call):
    text = unicodedata.normalize("NFD", "Der Bär ging für immer nach Köln zurück\n")
    (tmp_path / "text.txt").write_text(text * 3, encoding="utf-8")
    paths = {"corpus": tmp_path / "text.txt", "output": tmp_path / "vocab"}
    _, said = call("vocab --size 500 --strip_accents false", **paths)
    assert "Next: bring each file to NFC" in said
    # Without accents, both forms are the same pieces.
    _, said = call("vocab --size 500 --overwrite --no_do_lower_case --strip_accents true", **paths)
    assert "NFC" not in said


def test_vocab_proposes_shards_of_the_text_that_it_has_read(tmp_path, call):
    text = tmp_path / "my text.jsonl"
    text.write_text('{"body": "the sea and the ship"}\n' * 3)
    line = "vocab --text_field body --skip_unreadable --size 100"
    _, said = call(line, corpus=text, output=tmp_path / "vocab")
    proposed = shlex.split(said.splitlines()[-1].partition("Next: ")[2])[1:-1]
    assert proposed[:4] == ["shards", "--corpus", str(text), "--text_field"]
    run("", *proposed, tmp_path / "shards", held_out_share=0)


def test_an_older_output_is_replaced_through_a_link(corpus, tokenizer, tmp_path):
    shutil.copytree(tokenizer, tmp_path / "old")
    (tmp_path / "old" / "vocab.txt").write_text("old")
    (tmp_path / "link").symlink_to("old")
    run("vocab --size 600 --overwrite", corpus=corpus, output=tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "old" / "vocab.txt").read_bytes() == (tokenizer / "vocab.txt").read_bytes()
