"""The command line: options, help, and mistakes, each one line with the nearest name.

What can be found before TensorFlow is imported is found before.
"""

import dataclasses
import os
import re
import signal
import sys
import typing
from dataclasses import MISSING, fields

import pytest
import yaml
from cases import for_each
from command_line import finished, words
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from preloaded import run_code

from bert_tf import cli
from bert_tf.cli import COMMANDS, main, read_options
from bert_tf.commands import predict
from bert_tf.commands.export import Options as ExportOptions
from bert_tf.commands.export import _settings
from bert_tf.commands.vocab import Options as VocabularyOptions
from bert_tf.options import changed_words, option_helps
from bert_tf.pipelines.data_options import CorpusOptions
from bert_tf.tasks.task_options import FileOptions, TaskOptions
from bert_tf.tasks.task_table import TASKS
from bert_tf.training.training_options import save_config


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a run, a model and a table, where TensorFlow is not to be imported."""
    for model in ("runs/cls/best", "models/tiny", "served/x/1"):
        (tmp_path / model).mkdir(parents=True)
    for model in ("runs/cls/best", "models/tiny"):
        (tmp_path / model / "config.json").write_text("{}")
    task = '{"task": "regression", "text_column": "body", "label_column": "score"}'
    (tmp_path / "runs/cls/best/task.json").write_text(task)
    (tmp_path / "train.tsv").write_text("text\tlabel\nsea\tyes\nsky\tno\n")
    (tmp_path / "train.jsonl").write_text('{"text": "sea", "mark": "yes"}\n')
    monkeypatch.chdir(tmp_path)

    def imported(**_):
        raise AssertionError("TensorFlow is imported")

    monkeypatch.setattr(cli, "import_tensorflow", imported)
    return tmp_path


TRAIN = "finetune --model models/tiny --train train.tsv --output o "


@for_each(
    "line message",
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
    (TRAIN + "stray", "'stray' belongs to no option: write an option before it"),
    (TRAIN + "--bilstm=maybe", "--bilstm takes no value: write --bilstm or --no_bilstm"),
    ("finetune --model", "--model needs a value"),
    ("predict --model m --text a --text=b", "--text is given twice: give all values after one"),
    ("shards --instance y", "match --instances, --instances_per_row: write its whole name"),
    (TRAIN + "--task sentiment", "no task 'sentiment': did you mean classification?"),
    (TRAIN + "--task mrcp", "no task 'mrcp': did you mean mrpc?"),
    (TRAIN + "--task ner", "no task 'ner': did you mean tagging?"),
    (TRAIN + "--task Question-Answering", "did you mean squad?"),
    (TRAIN + "--task own.py", "own.py: no such file"),
    ("tasks own.py", "own.py: no such file"),
    (TRAIN + "--text_column txt", "no column 'txt', there are: text, label"),
    (TRAIN + "--label_column txt", "no column 'txt', there are: text, label"),
    (TRAIN + "--validation train.jsonl", "no column 'label', there are: text, mark"),
    (TRAIN.replace("tiny", "tyni"), "tyni: no such file or folder; did you mean models/tiny?"),
    (TRAIN.replace("models", "model"), "did you mean models/tiny?"),
    (TRAIN.replace("train.tsv", "train"), "did you mean train.jsonl?"),
    (TRAIN.replace("models/tiny", "served"), "served holds neither config.json nor a Saved"),
    ("export --model runs/cls --name x", "not a model: did you mean runs/cls/best?"),
    ("predict --model models/tiny --input gone.tsv", "--input gone.tsv: no such file"),
    ("predict --model models/tiny", "give exactly one of --text and --input"),
    ("predict --model models/tiny --text a --output runs", "runs: is a folder"),
    ("shards --corpus train.txt --tokenizer models --output o", "did you mean train."),
)
def test_a_mistake_is_one_line_before_tensorflow(place, capsys, line, message):
    assert main(line.split()) == 2
    told = capsys.readouterr().err
    assert told.startswith("bert-tf") and told.count("\n") == 1
    assert message in told
    assert not (place / "o").exists()


@for_each(
    "line",
    TRAIN,
    TRAIN + "--no_header --text_column 0 --label_column 1",
    "evaluate --model models/tiny --data train.jsonl --label_column mark",
    "evaluate --model runs/cls/best --data train.tsv --text_column text --label_column label",
    "evaluate --model runs/cls/best --data train.tsv --task mrpc",
    "predict --model served/x --text a",
    "predict --model models/tiny --input - --format lines",
    "predict --model models/tiny --input tfds:glue/mrpc",
    "shards --corpus *.tsv --tokenizer models/tiny --output o",
)
def test_what_may_be_right_gets_to_tensorflow(place, line):
    with pytest.raises(AssertionError, match="TensorFlow is imported"):
        main(line.split())


def test_only_names_of_options_may_have_dashes_for_underscores(place, monkeypatch):
    given = []
    monkeypatch.setattr(predict.COMMAND, "run", given.append)
    monkeypatch.setattr(predict.COMMAND, "show", lambda *_: None)
    monkeypatch.setattr(cli, "import_tensorflow", lambda **_: None)
    texts = ["-- a well-known film", "a b-c", "--un-known=a b"]
    assert main(words("predict --model models/tiny --text", *texts[:2])) == 0
    assert main(["predict", "--model=models/tiny", f"--text={texts[2]}"]) == 0
    assert [options.text for options in given] == [texts[:2], texts[2:]]


def shown_options(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    assert ended.value.code == 0
    told = capsys.readouterr().out
    flags = [line.split()[0].strip(",") for line in told.splitlines() if line.startswith("  --")]
    return told, [flag for flag in flags if flag not in ("--config", "--help_all")]


@for_each("command", "finetune", "pretrain", "search", "serve", "shards")
def test_the_help_shows_common_options_and_the_groups_of_the_others(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    told, common = shown_options(capsys, command, "--help")
    assert 9 <= len(common) <= 15
    assert "--help_all shows the other options: " in told
    whole, options = shown_options(capsys, command, "--help_all")
    assert set(common) < set(options) and "the other options:" not in whole
    if command == "finetune":  # the help begins with what a run needs
        assert whole.startswith("usage: bert-tf finetune --model MODEL --output OUTPUT [options]\n")
        needed = words("--model --data --train --validation --task --output")
        assert options[:6] == needed
        usual = "--label_column --text_column --validation_share --class_weights --best_by"
        assert {*needed, *words(usual)} <= set(common)


def test_help_is_there_for_every_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    told, _ = shown_options(capsys, "--help")
    lines = told.splitlines()
    assert max(map(len, lines)) <= 80
    for command, summary in COMMANDS.items():
        assert [command, *summary.split()] in [line.split() for line in lines]
        text, _ = shown_options(capsys, command, "--help")
        assert f"  bert-tf {command} " in text  # an example of its own docstring
        assert not re.search(r"^  bert-tf .* {2}--", text, re.MULTILINE)  # its lines, as written
        assert "--config" in text


def test_a_reader_that_leaves_ends_the_command_quietly(monkeypatch, capsys):
    """As in `bert-tf predict ... | head -1`."""
    monkeypatch.setattr("bert_tf.commands.tasks.COMMAND.show", lambda *_: print("a line"))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        monkeypatch.setattr("sys.stdout", output)
        assert main(["tasks"]) == 128 + signal.SIGPIPE
    assert "Broken" not in capsys.readouterr().err


def test_help_tasks_and_checks_import_nothing_heavy(place):
    code = """
import sys
from bert_tf.cli import COMMANDS, command_named, main
try: main(["--help"])
except SystemExit: pass
assert not {"tensorflow", "keras", "numpy"} & set(sys.modules)
for command in COMMANDS:
    assert command_named(command).options
    assert not {"tensorflow", "keras"} & set(sys.modules), command
assert main(["tasks"]) == main(["tasks", "squad2"]) == 0
assert not {"tensorflow", "keras", "matplotlib", "scipy", "sklearn"} & set(sys.modules)
for line in sys.argv[1:]:
    assert main(line.split()) == 2
    assert not {"tensorflow", "keras"} & set(sys.modules), line
"""
    lines = [TRAIN + "--text_column txt", TRAIN + "--task mrcp", TRAIN.replace("tiny", "tyni")]
    for name, label in (("bad", ""), ("more", "no"), ("unknown", "perhaps")):
        (place / f"{name}.tsv").write_text(f"text\tlabel\nsea\tyes\nsky\t{label}\n")
    lines += [TRAIN.replace("train.tsv", "bad.tsv"), "check --train bad.tsv --data more.tsv"]
    lines += [TRAIN.replace("train.tsv", "more.tsv") + "--validation unknown.tsv"]
    assert "pretrain" in finished(sys.executable, "-c", code, *lines).stdout


def test_letters_that_standard_output_lacks_are_escaped():
    code = r"""
import sys
from bert_tf.cli import main
from bert_tf.commands import tasks
tasks.COMMAND.show = lambda result, options: print("\ud615, caf\xe9, \udce9")
for encoding in ("ascii", "utf-8"):
    sys.stdout.reconfigure(encoding=encoding, errors="strict")
    main()
"""
    done = run_code(code, ["tasks"], check=True)
    assert done.stdout.splitlines() == [r"\ud615, caf\xe9, \udce9", r"형, café, \udce9"]


INTEGERS = st.sampled_from([-(10**30), -5, -1, 0, 1, 3, 2**31, 2**63, 10**30]) | st.integers()
FLOATS = st.sampled_from([0.0, -1.0, 0.5, 1.0, 1e300]) | st.floats()
ODD = st.sampled_from(["", "null", "1e3", ".nan", "a:b", "[1, 2", "{a", "-", "x\0"])
TEXTS = ODD | st.text(max_size=5)
ANYTHING = st.none() | st.booleans() | INTEGERS | FLOATS | TEXTS | st.lists(TEXTS, max_size=2)


def values_of(hint) -> st.SearchStrategy:
    members = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return st.sampled_from(members) | TEXTS
    if typing.get_origin(hint) is list:
        return st.lists(values_of(members[0]), min_size=1, max_size=2)
    if members:
        return st.one_of([values_of(member) for member in members])
    return {int: INTEGERS, float: FLOATS, bool: st.booleans()}.get(hint, TEXTS)


def given_values(options) -> st.SearchStrategy:
    """Values for all that is required, and for some of what is not."""
    hints = typing.get_type_hints(options)
    required, optional = {}, {}
    for field in fields(options):
        if field.metadata.get("python"):
            continue
        is_required = field.default is MISSING and field.default_factory is MISSING
        chosen = required if is_required else optional
        chosen[field.name] = values_of(hints[field.name])
    return st.fixed_dictionaries(required, optional=optional)


def code_of(arguments) -> int:
    try:
        return main(arguments)
    except SystemExit as end:  # the parser's own
        return end.code


def on_command_line(options, values) -> list[str]:
    positional = {field.name for field in fields(options) if field.metadata.get("positional")}
    arguments = []
    for name, value in values.items():
        items = [str(item) for item in (value if isinstance(value, list) else [value])]
        if name in positional:
            arguments = [*items, *arguments]
        elif isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no_{name}")
        else:
            arguments += [f"--{name}", *items] if len(items) > 1 else [f"--{name}={items[0]}"]
    return arguments


@for_each("command", *COMMANDS)
def test_no_value_of_an_option_makes_a_traceback(command, tmp_path, monkeypatch):
    named = cli.command_named(command)
    for step in ("run", "show"):
        monkeypatch.setattr(named, step, lambda *_: None)
    path = tmp_path / "config.yaml"

    @settings(
        max_examples=8,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # to shrink so many values takes minutes
    )
    @given(values=given_values(named.options), data=st.data())
    def check(values, data):
        assert code_of([command, *on_command_line(named.options, values)]) in (0, 2)
        if values:
            values[data.draw(st.sampled_from(sorted(values)))] = data.draw(ANYTHING)
        path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
        assert code_of([command, "--config", str(path)]) in (0, 2)

    check()


@for_each("command", *COMMANDS)
def test_each_option_has_a_help(command):
    options = cli.command_named(command).options
    helps = option_helps(options)
    assert all(helps.get(field.name) for field in fields(options))


@for_each(
    "text cause",
    ("stepz: 3", "there is no option stepz: did you mean steps?"),
    ("seed: 99999999999999", "is 99999999999999: give at least 0 and below 2,147,483,648"),
    ("watch_text: a", "--watch_text is 'a': give a list, such as [a]"),
    ("watch_text: 2026-11-28", "--watch_text is '2026-11-28': give a list"),
    ("task: true", "--task is True: give a text"),
    ("task: [a]", "--task is ['a']: give a text"),
    ("- 3", "holds no options"),
    ("steps: [1", "is not YAML"),
    ("\udcff", "cannot be read"),
)
def test_a_config_that_cannot_be_used_is_named(text, cause, tmp_path, call):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    command = "finetune --model m --train t" if "task" in text else "pretrain --shards s"
    line = call.refused(f"{command} --output o", config=path)
    assert cause in line and (":" in cause or str(path) in line)


@for_each(
    "options",
    {"model": "1e3", "train": "null", "output": "\u00fc: [", "text_column": "1e3"}
    | {"label_column": ".nan", "override": True, "learning_rate": 1e-5},
    {"shards": "0x1f", "output": "- a", "watch_text": ["[MASK]: #1", "~"], "dry_run": True},
    ids=["finetune", "pretrain"],
)
def test_config_yaml_repeats_the_run(options, tmp_path, monkeypatch):
    """Names that YAML takes for numbers, too; but not what was meant for one time."""
    command = "finetune" if "train" in options else "pretrain"
    options = cli.command_named(command).options(**options)
    taken = []
    named = cli.command_named(command)
    monkeypatch.setattr(named, "run", taken.append)
    monkeypatch.setattr(named, "show", lambda *_: None)
    monkeypatch.setattr(named, "prepare", lambda options: None)  # the files are made up
    monkeypatch.setattr(cli, "check", lambda options: None)
    save_config(options, tmp_path)
    assert code_of([command, "--config", str(tmp_path / "config.yaml")]) == 0
    options.override, options.dry_run, options.verbose = False, False, True
    assert taken == [options]


def test_the_options_of_a_proposed_command_are_read_back():
    kept = {"strip_accents": False, "tokenize_chinese_chars": False}
    options = VocabularyOptions(corpus=["my text", "b"], output="v", **kept)
    typed = changed_words(options)
    assert read_options("vocab", ["vocab", *typed]) == dataclasses.replace(options, verbose=True)
    assert changed_words(options, CorpusOptions) == []


def test_interrupting_a_run_is_no_error(monkeypatch, capsys):
    def stopped(options):
        raise KeyboardInterrupt("stopped at step 7 and saved")

    monkeypatch.setattr("bert_tf.commands.pretrain.COMMAND.run", stopped)
    monkeypatch.setattr(cli, "check", lambda options: None)
    assert main(words("pretrain --shards s --output o")) == 130
    assert capsys.readouterr().err == "bert-tf pretrain: stopped at step 7 and saved\n"


VALUES = {"format": "jsonl", "header": False, "long_texts": "windows", "normalize": False}
VALUES |= {"embedding_loss": "cosent", "window_pooling": "max", "pooling": "cls"}


def test_every_option_of_tasks_and_files_changes_a_task():
    for field in (*dataclasses.fields(TaskOptions), *dataclasses.fields(FileOptions)):
        if field.name != "task":
            default = 3 if "int" in str(field.type) else 0.5 if "float" in str(field.type) else "0"
            settings = {field.name: VALUES.get(field.name, default)}
            changed = [task for task in TASKS.values() if task.with_settings(settings) != task]
            assert changed, field.name
    # Not the export's format, which is called as that of the task's files.
    task = TASKS["classification"]
    assert task.with_settings(_settings(ExportOptions(model="m", name="n"))) == task
