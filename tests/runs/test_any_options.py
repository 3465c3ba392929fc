"""Whatever the options hold, a command ends in a line for the user, never in a traceback."""

import typing
from dataclasses import MISSING, fields

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from bert_tf import cli
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.options import option_helps
from bert_tf.training.training_options import save_config

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
        return cli.main(arguments)
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


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_no_value_of_an_option_makes_a_traceback(command, tmp_path, monkeypatch):
    module = cli.command_module(command)
    monkeypatch.setattr(module, "run", lambda options: None)
    monkeypatch.setattr(cli, "show", lambda *_: None)
    path = tmp_path / "config.yaml"

    @settings(
        max_examples=8,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],  # to shrink so many values takes minutes
    )
    @given(values=given_values(module.Options), data=st.data())
    def check(values, data):
        assert code_of([command, *on_command_line(module.Options, values)]) in (0, 2)
        if values:
            values[data.draw(st.sampled_from(sorted(values)))] = data.draw(ANYTHING)
        path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
        assert code_of([command, "--config", str(path)]) in (0, 2)

    check()


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_each_option_has_a_help(command):
    options = cli.command_module(command).Options
    helps = option_helps(options)
    assert all(helps.get(field.name) for field in fields(options))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("stepz: 3", "unknown option 'stepz': write steps"),
        ("steps: null", "--steps is null: give a value, or leave it out"),
        ("learning_rate: .nan", "--learning_rate is nan: give above 0"),
        (
            "seed: 99999999999999",
            "--seed is 99999999999999: give at least 0 and below 2,147,483,648",
        ),
        ("watch_text: a", "--watch_text is 'a': give a list, such as [a]"),
        ("- 3", "holds no options"),
        ("steps: [1", "is not YAML"),
        ("\udcff", "cannot be read"),
    ],
)
def test_a_config_that_cannot_be_used_is_named(text, cause, tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    arguments = ["pretrain", "--shards", "s", "--output", "o", "--config", str(path)]
    assert code_of(arguments) == 2
    line = capsys.readouterr().err
    assert line.startswith("bert-tf pretrain: error: ") and cause in line
    assert "--" in cause or str(path) in line


@pytest.mark.parametrize("task", ["true", "[a]"])
def test_a_task_that_is_no_text_is_refused(task, tmp_path, capsys):
    path = tmp_path / "config.yaml"
    path.write_text(f"task: {task}", encoding="utf-8")
    arguments = ["finetune", "--model", "m", "--train", "t", "--output", "o"]
    assert code_of([*arguments, "--config", str(path)]) == 2
    assert "--task" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        FinetuningOptions(
            model="1e3",
            train="null",
            output="\u00fc: [",
            text_column="1e3",
            pair_column="yes",
            label_column=".nan",
            override=True,
            learning_rate=1e-5,
        ),
        PretrainingOptions(
            shards="0x1f", output="- a", watch_text=["[MASK]: #1", "~"], max_ngram=2, dry_run=True
        ),
    ],
    ids=["finetune", "pretrain"],
)
def test_config_yaml_repeats_the_run(options, tmp_path, monkeypatch):
    """Names that YAML takes for numbers, too; but not what was meant for one time."""
    command = "finetune" if isinstance(options, FinetuningOptions) else "pretrain"
    taken = []
    monkeypatch.setattr(cli.command_module(command), "run", taken.append)
    monkeypatch.setattr(cli, "show", lambda *_: None)
    monkeypatch.setattr(cli, "check", lambda options: None)  # the files are made up
    save_config(options, tmp_path)
    assert code_of([command, "--config", str(tmp_path / "config.yaml")]) == 0
    options.override, options.dry_run, options.verbose = False, False, True
    assert taken == [options]


def test_a_list_given_twice_loses_nothing(capsys):
    assert cli.main(["predict", "--model", "m", "--text", "one", "--text=two"]) == 2
    assert "--text is given twice: give all values after one --text" in capsys.readouterr().err


def test_interrupting_a_run_is_no_error(monkeypatch, capsys):
    def stopped(options):
        raise KeyboardInterrupt("stopped at step 7 and saved")

    monkeypatch.setattr("bert_tf.commands.pretrain.run", stopped)
    monkeypatch.setattr(cli, "check", lambda options: None)
    assert cli.main(["pretrain", "--shards", "s", "--output", "o"]) == 130
    assert capsys.readouterr().err == "bert-tf pretrain: stopped at step 7 and saved\n"


def test_the_help_fits_a_terminal_of_80_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    for command, summary in cli.COMMANDS.items():
        assert [command, *summary.split()] in [line.split() for line in lines]
    assert max(map(len, lines)) <= 80
