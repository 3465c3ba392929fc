"""What earlier versions wrote still loads: model directories, run directories, exports."""

import json
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from bert_tf import load_model, save_model
from bert_tf.cli import main
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.task_models import BertClassifier
from bert_tf.paper.language_model import BertLanguageModel

# A gradient that is 0 but for rounding (the bias of attention's keys: 1e-9) moves a weight by
# learning rate * gradient / Adam's epsilon = 1e-5 a step, in a direction that is arbitrary.
TOLERANCE = 1e-4


@pytest.fixture(autouse=True)
def old_files(tmp_path, monkeypatch):
    """The working directory holds the files of that version."""
    with tarfile.open(Path(__file__).with_name("d11b35f.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)


def run(command: str) -> None:
    assert main(command.split()) == 0, command


def answers(path: str) -> dict[str, dict[str, float]]:
    lines = map(json.loads, Path(path).read_text(encoding="utf-8").splitlines())
    return {line["text"]: line["probabilities"] for line in lines}


@pytest.mark.parametrize(
    ("directory", "model_class"),
    [
        ("pretraining/last", BertPreTrainer),
        ("two_encoders/last", BertLanguageModel),
        ("finetuning/best", BertClassifier),
    ],
)
def test_a_model_directory_loads_and_is_saved_with_the_same_weights(directory, model_class):
    model = load_model(directory)
    assert type(model) is model_class
    save_model(model, "again")
    old, new = (load_file(f"{each}/model.safetensors") for each in (directory, "again"))
    assert old.keys() == new.keys()
    for name in old:
        np.testing.assert_array_equal(old[name], new[name])


@pytest.mark.slow  # test_frozen.py resumes a later version's run each time
@pytest.mark.parametrize(
    ("directory", "command"),
    [
        (
            "two_encoders",
            "pretrain --shards shards --batch_size 4 --steps 8 --save_every 4 --evaluate_every 4 "
            "--learning_rate 1e-2 --warmup_steps 2 --strategy one --model start-two "
            "--objective ltr+rtl",
        ),
        (
            "finetuning",
            "finetune --model pretraining/best --train train.tsv --validation train.tsv "
            "--task classification --text_column sentence --epochs 8 --batch_size 4 "
            "--strategy one --max_length 16 --learning_rate 1e-2 --evaluate_every 8",
        ),
    ],
)
def test_a_run_continues_on_the_trajectory_of_its_version(directory, command, capsys):
    """From the checkpoint in the middle, to the weights that its version ended with."""
    old = load_file(f"{directory}/last/model.safetensors")
    (checkpoint,) = Path(directory, "checkpoints").iterdir()
    run(f"{command} --output {directory}")
    steps = [int(n) for n in re.findall(r"^step +(\d+)/", capsys.readouterr().err, re.MULTILINE)]
    assert steps and min(steps) > int(checkpoint.stem.removeprefix("step-"))
    new = load_file(f"{directory}/last/model.safetensors")
    assert old.keys() == new.keys()
    for name in old:
        np.testing.assert_allclose(new[name], old[name], rtol=0, atol=TOLERANCE, err_msg=name)


def test_an_export_and_its_model_directory_answer_as_before():
    expected = answers("answers.jsonl")
    assert len({str(each) for each in expected.values()}) == len(expected)
    for model in ("saved_models/moods", "finetuning/best"):
        run(f"predict --model {model} --input train.tsv --text_column sentence --output new.jsonl")
        found = answers("new.jsonl")
        assert found.keys() == expected.keys()
        for text in expected:
            assert found[text] == pytest.approx(expected[text], abs=1e-5)
