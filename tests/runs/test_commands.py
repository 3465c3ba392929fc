"""The whole path through the command line, on a tiny corpus."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from preloaded import run_code
from rounding import rounding
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from bert_tf import BertEncoder, BertTokenizer
from bert_tf.cli import COMMANDS, main


def scalars(directory) -> dict[str, list]:
    events = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    events.Reload()
    return {tag: [event.step for event in events.Tensors(tag)] for tag in events.Tags()["tensors"]}


def test_vocab_writes_a_tokenizer_folder(tokenizer):
    pieces = (tokenizer / "vocab.txt").read_text(encoding="utf-8").splitlines()
    assert pieces[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert len(pieces) == 600
    loaded = BertTokenizer.from_directory(tokenizer)
    ids = loaded.tokenize(["the class statement"])
    assert loaded.unk_token_id not in ids.flat_values.numpy()


def test_shards_are_complete(shards, tokenizer):
    manifest = json.loads((shards / "manifest.json").read_text())
    assert set(manifest["shards"]) == {"train", "held_out"}
    assert (shards / "vocab.txt").read_bytes() == (tokenizer / "vocab.txt").read_bytes()
    assert manifest["options"]["max_seq_length"] == 32


def test_pretrain_writes_models_logs_checkpoints_and_config(pretrained, shards):
    names = {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"}
    train = scalars(pretrained / "logs" / "train")
    assert set(train) == names | {
        "gradient_norm",
        "learning_rate",
        "examples_per_second",
        "tokens_per_second",
        "share_of_peak",
        "minutes_left",
    }
    assert train["loss"] == [5, 10, 15, 20]
    held_out = scalars(pretrained / "logs" / "held_out")
    assert set(held_out) == names
    assert held_out["mlm_loss"] == [10, 20]
    assert (pretrained / "checkpoints" / "step-00000020.safetensors").is_file()
    assert f'shards: "{shards}"' in (pretrained / "config.yaml").read_text()
    for model in ("best", "last"):
        assert BertEncoder.from_directory(pretrained / model).config.hidden_size == 16


def test_a_finished_run_started_again_changes_nothing(pretrained, shards, small_config):
    before = (pretrained / "last" / "model.safetensors").read_bytes()
    assert main(["pretrain", "--config", str(pretrained / "config.yaml")]) == 0
    assert (pretrained / "last" / "model.safetensors").read_bytes() == before


def test_a_default_that_is_spelled_out_is_no_other_setting(pretrained, capsys):
    """A tenth of the 20 steps."""
    config = ["pretrain", "--config", str(pretrained / "config.yaml")]
    assert main([*config, "--warmup_steps", "2"]) == 0
    assert main([*config, "--warmup_steps", "3"]) == 2
    assert "warmup_steps was None, is now 3" in capsys.readouterr().err


def test_other_settings_are_refused(pretrained, capsys):
    code = main(["pretrain", "--config", str(pretrained / "config.yaml"), "--seed", "7"])
    assert code == 2
    assert "seed was 12345, is now 7" in capsys.readouterr().err


def test_finetune_learns(finetuned):
    scores = json.loads((finetuned / "best" / "metrics.json").read_text())
    assert scores["accuracy"] > 0.8  # telling two disjoint sets of words apart
    header, *rows = (finetuned / "best" / "predictions.tsv").read_text().splitlines()
    assert header.split("\t") == ["text", "label", "predicted", "farm", "sea"]
    assert len(rows) == scores["examples"] == 10


def test_evaluate_prints_and_writes_scores(finetuned, labelled, tmp_path, capsys):
    code = main(
        [
            "evaluate",
            "--model",
            str(finetuned / "best"),
            "--data",
            str(labelled / "test.tsv"),
            "--output",
            str(tmp_path / "scores"),
        ]
    )
    assert code == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "scores" / "metrics.json").read_text())
    assert printed["examples"] == 24


@pytest.mark.slow
def test_a_directory_of_transformers_5_has_tokenizer_json_alone(
    finetuned, labelled, tmp_path, capsys
):
    folder = tmp_path / "model"
    shutil.copytree(finetuned / "best", folder)
    pieces = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
    (folder / "vocab.txt").unlink()
    values = {
        "normalizer": {"type": "BertNormalizer", "lowercase": True, "strip_accents": None},
        "model": {"type": "WordPiece", "vocab": {piece: i for i, piece in enumerate(pieces)}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    for model in (finetuned / "best", folder):
        command = ["evaluate", "--model", str(model), "--data", str(labelled / "test.tsv")]
        assert main([*command, "--output", str(tmp_path / "scores" / model.name)]) == 0
    ours, expected = (tmp_path / "scores" / name / "predictions.tsv" for name in ("model", "best"))
    assert ours.read_bytes() == expected.read_bytes()
    values["model"]["type"] = "BPE"
    (folder / "tokenizer.json").write_text(json.dumps(values), encoding="utf-8")
    capsys.readouterr()
    assert main(["evaluate", "--model", str(folder), "--data", str(labelled / "test.tsv")]) == 2
    assert "tokenizer.json: holds a BPE tokenizer, not BERT's" in capsys.readouterr().err


def test_the_saved_model_answers_as_the_model_does(exported, finetuned, labelled, tmp_path, capsys):
    main(
        [
            "evaluate",
            "--model",
            str(finetuned / "best"),
            "--data",
            str(labelled / "test.tsv"),
            "--output",
            str(tmp_path),
        ]
    )
    code = main(
        [
            "predict",
            "--model",
            str(exported),
            "--input",
            str(labelled / "test.tsv"),
            "--output",
            str(tmp_path / "answers.jsonl"),
        ]
    )
    assert code == 0
    _, *rows = (tmp_path / "predictions.tsv").read_text().splitlines()
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert len(rows) == len(answers) == 24
    for row, answer in zip(rows, answers, strict=True):
        text, _, predicted, farm, sea = row.split("\t")
        assert (answer["text"], answer["label"]) == (text, predicted)
        expected = {"farm": float(farm), "sea": float(sea)}
        found = [answer["probabilities"][name] for name in expected]
        atol = 0.5e-6 + rounding(30, 32)  # six decimals; a block and a head
        np.testing.assert_allclose(found, list(expected.values()), rtol=0, atol=atol)


def test_predict_prints_json_lines(exported, capsys):
    texts = ["the ship sailed", "golden wheat near a barn"]
    assert main(["predict", "--model", str(exported), "--text", *texts]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [answer["text"] for answer in answers] == texts
    for answer in answers:
        assert answer["probability"] == max(answer["probabilities"].values())
        assert abs(sum(answer["probabilities"].values()) - 1) < 1e-5


@pytest.mark.slow
def test_every_export_is_a_new_version(exported, finetuned, tmp_path):
    shutil.copytree(exported, tmp_path / "x")
    command = ["export", "--model", str(finetuned / "best"), "--name", "x", "--output"]
    assert main([*command, str(tmp_path)]) == 0
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["1", "2"]


@pytest.mark.slow
def test_from_scratch_forgets_the_weights(finetuned, pretrained, labelled, tmp_path):
    code = main(
        [
            "finetune",
            "--model",
            str(pretrained / "last"),
            "--from-scratch",
            "--train",
            str(labelled / "train.tsv"),
            "--output",
            str(tmp_path / "run"),
            "--epochs",
            "1",
            "--learning-rate",
            "1e-9",
            "--max-length",
            "16",
            "--dropout",
            "0.25",
        ]
    )
    assert code == 0
    table = "embeddings"
    model = BertEncoder.from_directory(tmp_path / "run" / "last")
    assert model.config.hidden_dropout_prob == model.config.attention_probs_dropout_prob == 0.25
    fresh = model.get_layer(table)
    trained = BertEncoder.from_directory(pretrained / "last").get_layer(table)
    assert not np.allclose(fresh.get_weights()[0], trained.get_weights()[0], atol=1e-3)


def test_help_is_there_for_every_command(capsys):
    for command in COMMANDS:
        with pytest.raises(SystemExit) as exit_:
            main([command, "--help"])
        assert exit_.value.code == 0
        text = capsys.readouterr().out
        assert f"  bert-tf {command} " in text  # an example of its own docstring
        assert not re.search(r"^  bert-tf .* {2}--", text, re.MULTILINE)  # its lines, as written
        assert "--config" in text


def test_a_reader_that_leaves_ends_the_command_quietly(monkeypatch, capsys):
    """As in `bert-tf predict ... | head -1`."""
    monkeypatch.setattr("bert_tf.commands.tasks.show", lambda result, options: print("a line"))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert main(["tasks"]) == 128 + signal.SIGPIPE
    assert "Broken" not in capsys.readouterr().err


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from bert_tf.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pretrain" in done.stdout


@pytest.mark.slow
def test_the_console_command_is_quiet(exported):
    command = shutil.which("bert-tf", path=str(__import__("pathlib").Path(sys.executable).parent))
    done = subprocess.run(
        [command, "predict", "--model", str(exported), "--text", "the ship"],
        capture_output=True,
        text=True,
        env={"PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == "the ship"
    assert done.stderr.strip() == ""  # none of TensorFlow's start-up chatter


def test_letters_that_standard_output_lacks_are_escaped():
    code = r"""
import sys
from bert_tf.cli import main
from bert_tf.commands import tasks
tasks.show = lambda result, options: print("\ud615, caf\xe9, \udce9")
for encoding in ("ascii", "utf-8"):
    sys.stdout.reconfigure(encoding=encoding, errors="strict")
    main()
"""
    done = run_code(code, ["tasks"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [r"\ud615, caf\xe9, \udce9", r"형, café, \udce9"]
