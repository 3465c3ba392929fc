"""A mistyped command ends in one line with the nearest name, before TensorFlow is imported."""

import subprocess
import sys

import pytest

from bert_tf import cli
from bert_tf.commands import ask
from bert_tf.errors import InputError
from bert_tf.tasks.table import check_name


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a run, a model and a table, where TensorFlow is not to be imported."""
    for model in ("runs/cls/best", "models/tiny", "served/x/1"):
        (tmp_path / model).mkdir(parents=True)
    for model in ("runs/cls/best", "models/tiny"):
        (tmp_path / model / "config.json").write_text("{}")
    (tmp_path / "runs/cls/best/task.json").write_text(
        '{"task": "regression", "text_column": "body", "label_column": "score"}'
    )
    (tmp_path / "train.tsv").write_text("text\tlabel\nsea\tyes\n")
    (tmp_path / "train.jsonl").write_text('{"text": "sea", "mark": "yes"}\n')
    monkeypatch.chdir(tmp_path)

    def imported(**_):
        raise AssertionError("TensorFlow is imported")

    monkeypatch.setattr(cli, "import_tensorflow", imported)
    return tmp_path


TRAIN = "finetune --model models/tiny --train train.tsv --output o "


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("finetune --modle x", "there is no option --modle: did you mean --model?"),
        ("vocab --vocab_size 9", "there is no option --vocab_size; "),
        ("ensemble --models a b", "there is no option --models: did you mean MODELS?"),
        ("finetune --no_bilsmt", "there is no option --no_bilsmt: did you mean --no_bilstm?"),
        ("fine-tune", "there is no command 'fine-tune': give finetune"),
        ("--modle x", "there is no command 'x': give one of vocab, "),
        ("--modle", "there is no command in '--modle': bert-tf --help lists them"),
        ("evaluate", "give --model and --data"),
        ("convert", "give SOURCE and OUTPUT"),
        (TRAIN + "--learning_rate abc", "--learning_rate is 'abc': give a number"),
        (TRAIN + "--batch_size 1.5", "--batch_size is '1.5': give a whole number"),
        (TRAIN.replace("finetune", "search") + "--learning_rate 1 x", "_rate is 'x': give a"),
        (TRAIN + "--schedule linaer", "--schedule is 'linaer': did you mean linear?"),
        (TRAIN + "--learning_rate 1e30", "is 1e+30: give at most 9,007,199,254,740,992"),
        (TRAIN + "stray", "'stray' belongs to no option"),
        (TRAIN + "--bilstm=maybe", "--bilstm takes no value: write --bilstm or --no_bilstm"),
        ("finetune --model", "--model needs a value"),
        (TRAIN + "--task sentiment", "no task 'sentiment': did you mean classification?"),
        (TRAIN + "--task mrcp", "no task 'mrcp': did you mean mrpc?"),
        (TRAIN + "--task own.py", "own.py: no such file"),
        (TRAIN + "--text_column txt", "no column 'txt', there are: text, label"),
        (TRAIN + "--label_column txt", "no column 'txt', there are: text, label"),
        (TRAIN + "--validation train.jsonl", "no column 'label', there are: text, mark"),
        (
            TRAIN.replace("tiny", "tyni"),
            "--model models/tyni: no such file or folder; did you mean models/tiny?",
        ),
        (TRAIN.replace("models", "model"), "did you mean models?"),
        (TRAIN.replace("train.tsv", "train"), "did you mean train.jsonl?"),
        (TRAIN.replace("models/tiny", "served"), "served holds neither config.json nor a Saved"),
        (
            "predict --model runs/cls --text a",
            "is a run directory, not a model: did you mean runs/cls/best?",
        ),
        ("export --model runs/cls --name x", "did you mean runs/cls/best?"),
        ("evaluate --model runs/cls/best --data train.tsv", "no column 'body'"),
        ("predict --model models/tiny --input gone.tsv", "--input gone.tsv: no such file"),
        ("predict --model models/tiny", "give exactly one of --text and --input"),
        ("predict --model models/tiny --text a --output runs", "runs: is a folder"),
        ("shards --corpus train.txt --tokenizer models --output o", "did you mean train."),
    ],
)
def test_a_mistake_is_one_line_before_tensorflow(place, capsys, line, message):
    assert cli.main(line.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("bert-tf") and told.count("\n") == 1
    assert message in told
    assert not (place / "o").exists()


@pytest.mark.parametrize(
    "line",
    [
        TRAIN,
        TRAIN + "--no_header --text_column 0 --label_column 1",
        "evaluate --model models/tiny --data train.jsonl --label_column mark",
        "evaluate --model runs/cls/best --data train.tsv --text_column text --label_column label",
        "evaluate --model runs/cls/best --data train.tsv --task mrpc",
        "predict --model served/x --text a",
        "predict --model models/tiny --input - --format lines",
        "predict --model models/tiny --input tfds:glue/mrpc",
        "shards --corpus *.tsv --tokenizer models/tiny --output o",
    ],
)
def test_what_may_be_right_gets_to_tensorflow(place, line):
    with pytest.raises(AssertionError, match="TensorFlow is imported"):
        cli.main(line.split())


def test_the_checks_import_no_tensorflow(place):
    """In a process of their own: here it is imported already."""
    code = """
import sys
from bert_tf.cli import main
for line in sys.argv[1:]:
    assert main(line.split()) == 2
    assert not {"tensorflow", "keras"} & set(sys.modules), line
"""
    lines = [TRAIN + "--text_column txt", TRAIN + "--task mrcp", TRAIN.replace("tiny", "tyni")]
    subprocess.run([sys.executable, "-c", code, *lines], check=True)


@pytest.mark.parametrize(
    ("name", "near"),
    [("ner", "tagging"), ("Question-Answering", "squad"), ("classificaton", "classification")],
)
def test_names_of_others_are_known(name, near):
    with pytest.raises(InputError, match=rf"did you mean {near}\?"):
        check_name(name)


def test_only_names_of_options_may_have_dashes_for_underscores(place, monkeypatch):
    given = []
    monkeypatch.setattr(ask, "run", given.append)
    monkeypatch.setattr(cli, "show", lambda *_: None)
    monkeypatch.setattr(cli, "import_tensorflow", lambda **_: None)
    texts = ["-- a well-known film", "a b-c", "--un-known=a b"]
    assert cli.main(["ask", "--index", "models/tiny", "--text", *texts[:2]]) == 0
    assert cli.main(["ask", "--index=models/tiny", f"--text={texts[2]}"]) == 0
    assert [options.text for options in given] == [texts[:2], texts[2:]]


def shown_options(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    flags = [line.split()[0].strip(",") for line in told.splitlines() if line.startswith("  --")]
    return told, [flag for flag in flags if flag not in ("--config", "--help_all")]


def test_the_help_begins_with_what_a_run_needs(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    told, options = shown_options(capsys, "finetune", "--help_all")
    assert told.startswith("usage: bert-tf finetune --model MODEL --output OUTPUT [options]\n")
    needed = ["--model", "--data", "--train", "--validation", "--task", "--output"]
    assert options[:6] == needed


@pytest.mark.parametrize("command", ["finetune", "pretrain", "search", "serve", "shards"])
def test_the_help_shows_ten_options_and_the_groups_of_the_others(command, capsys):
    told, common = shown_options(capsys, command, "--help")
    assert len(common) + (command == "serve") == 10  # serve has one without dashes
    assert "--help_all shows the other options: " in told
    whole, options = shown_options(capsys, command, "--help_all")
    assert set(common) < set(options) and "the other options:" not in whole
