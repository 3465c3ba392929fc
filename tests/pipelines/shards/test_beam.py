import subprocess
import sys

import pytest

from bert_tf.errors import InputError
from bert_tf.pipelines.data_options import PretrainingDataOptions
from bert_tf.pipelines.shards.manifest import Manifest
from bert_tf.pipelines.shards.workers import BeamRunner
from bert_tf.pipelines.shards.writing import write_shards
from bert_tf.tokenization import BertTokenizer

WORDS = "the of and to in a is that for it as was with be by on not he i this are or his from at"


@pytest.fixture
def text(tmp_path):
    words = WORDS.split()
    folder = tmp_path / "text"
    folder.mkdir()
    for file in range(4):
        documents = [
            "\n".join(
                " ".join(words[(file + document * sentence + i) % len(words)] for i in range(9))
                for sentence in range(12)
            )
            for document in range(20)
        ]
        (folder / f"{file}.txt").write_text("\n\n".join(documents))
    return folder


@pytest.fixture
def tokenizer():
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()])


OPTIONS = PretrainingDataOptions(max_seq_length=32, num_shards=2, held_out_share=0.1)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["in_memory", "multi_processing"])
def test_beam_makes_what_a_local_run_makes(tmp_path, text, tokenizer, monkeypatch, mode):
    monkeypatch.setattr("bert_tf.pipelines.corpus.sources.UNIT_BYTES", 10_000)
    runner = BeamRunner(f"--runner=FnApiRunner --direct_num_workers=2 --direct_running_mode={mode}")
    made = write_shards(text, tmp_path / "beam", tokenizer, OPTIONS, runner=runner)
    assert made == write_shards(text, tmp_path / "local", tokenizer, OPTIONS)
    assert contents(tmp_path / "beam") == contents(tmp_path / "local")
    assert len({shard.file.split("-")[1] for shard in made.shards["train"]}) > 3


def test_bad_input_is_named(tmp_path, text, tokenizer):
    (text / "9.txt").write_bytes(b"\xff\n" * 100)
    runner = BeamRunner("--runner=FnApiRunner --direct_running_mode=in_memory")
    with pytest.raises(InputError, match=r"9\.txt, line 1: invalid UTF-8") as raised:
        write_shards(text, tmp_path / "out", tokenizer, OPTIONS, runner=runner)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_without_beam_the_cure_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(InputError, match=r"pip install 'apache-beam<3,>=2\.77'"):
        BeamRunner()


@pytest.mark.slow
def test_the_command(tmp_path, text, tokenizer):
    tokenizer.save(tmp_path / "vocab")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bert_tf.cli",
            "shards",
            "--corpus",
            str(text),
            "--tokenizer",
            str(tmp_path / "vocab"),
            "--output",
            str(tmp_path / "shards"),
            "--runner",
            "beam",
            "--max-seq-length",
            "32",
            "64",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for length in ("32", "64"):
        assert Manifest.load(tmp_path / "shards" / length).instances() > 0
    assert "cudart" not in done.stderr
