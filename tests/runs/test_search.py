import contextlib
import io
import json
import signal

import pytest
from command_line import words
from preloaded import start_command, wait_until
from run_logs import newest_checkpoint
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.plugins.hparams.metadata import EXPERIMENT_TAG, SESSION_START_INFO_TAG
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, save_model
from bert_tf.cli import main

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "farm", "cow"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    config = tiny_config(len(PIECES), initializer_range=0.5)
    save_model(BertEncoder(config, seed=0), folder / "model", tokenizer=BertTokenizer(PIECES))
    rows = ["text\tlabel", *["sea ship\twet", "farm cow\tdry", "cow\tdry"] * 10]
    (folder / "train.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def command(data, output) -> list[str]:
    line = (
        "search --max_length 8 --strategy one --batch_size 8 --learning_rate 1e-3 1e-4 "
        "--epochs 20 --seeds 2 --save_every 10 --evaluate_every 60"
    )
    examples = dict.fromkeys(("train", "validation"), data / "train.tsv")
    return words(line, model=data / "model", output=output, **examples)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """The output folder of a search, and what it wrote to standard output and standard error."""
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert main(command(data, output)) == 0
    return output, out.getvalue(), err.getvalue()


@pytest.mark.slow
def test_a_search_from_the_command_line(data, undisturbed, capsys):
    output, out, err = undisturbed
    arguments = command(data, output)
    assert out == (output / "search.md").read_text()
    assert [line.split("|")[2].strip() for line in out.splitlines()[2:4]] == ["0.001", "0.0001"]
    assert "Setting 2 of 2: batch size 8, learning rate 0.0001, 20 epochs\n" in err
    assert f"best model: {output}/best" in err
    score = json.loads((output / "best" / "metrics.json").read_text())["accuracy"]
    assert f"{score:.4g}" == out.splitlines()[2].split("|")[4].strip()

    # TensorBoard's HParams tab: the columns, and a session for each run.
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(output)).Reload()
    tags = multiplexer.PluginRunToTagToContent("hparams")
    assert EXPERIMENT_TAG in tags.pop("logs")
    sessions = {run for run, found in tags.items() if SESSION_START_INFO_TAG in found}
    settings = [f"batch-8_rate-{rate}_epochs-20" for rate in ("0.001", "0.0001")]
    assert sessions == {f"{x}/seed-{seed}/logs" for x in settings for seed in (12345, 12346)}

    # The same command has nothing left to do, and says the same.
    assert main(arguments) == 0
    again, err = capsys.readouterr()
    assert again == out and "Setting" not in err

    text = (data / "train.tsv").read_text()
    try:
        (data / "train.tsv").write_text(text.replace("wet", "dry", 1))
        assert main(arguments) == 2
    finally:
        (data / "train.tsv").write_text(text)
    assert "holds a search with another content of the data" in capsys.readouterr().err


@pytest.mark.slow
def test_sigkill_between_and_within_the_runs(data, undisturbed, tmp_path):
    killed = tmp_path / "killed"

    def runs() -> int:
        if not (killed / "search.json").exists():
            return 0
        trials = json.loads((killed / "search.json").read_text())["trials"]
        return sum(len(trial["runs"]) for trial in trials)

    def kill_when(happened) -> None:
        process = start_command(command(data, killed))
        wait_until(happened, process, seconds=300)
        process.kill()
        assert process.wait() == -signal.SIGKILL

    kill_when(lambda: runs() == 1)  # between two runs of a setting
    kill_when(lambda: runs() == 2)  # between two settings
    third = killed / "batch-8_rate-0.0001_epochs-20" / "seed-12345"

    kill_when(lambda: newest_checkpoint(third) >= 30)
    assert runs() == 2
    assert main(command(data, killed)) == 0
    for name in ("search.tsv", "search.png", "best/model.safetensors"):
        assert (killed / name).read_bytes() == (undisturbed[0] / name).read_bytes()
    lines = (third / "logs" / "scalars.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == sorted(steps)  # it went on; it did not begin anew
    assert not [*killed.rglob(".*.tmp")]
