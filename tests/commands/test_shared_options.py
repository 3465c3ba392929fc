"""Inherited options are honoured: `bert-tf index --no_header` was accepted and ignored."""

import ast
import dataclasses
import inspect

import pytest

from bert_tf.cli import COMMANDS, command_module
from bert_tf.commands.export import Options as ExportOptions
from bert_tf.commands.export import _settings
from bert_tf.tasks.table import TASKS
from bert_tf.tasks.task_options import FileOptions, TaskOptions

VALUES = {
    "format": "jsonl",
    "header": False,
    "long_texts": "windows",
    "embedding_loss": "cosent",
    "window_pooling": "max",
    "pooling": "cls",
    "normalize": False,
}


def read_by(function) -> set[str] | None:
    """The options that a function reads by name; None if it hands them all on."""
    nodes = [*ast.walk(ast.parse(inspect.getsource(inspect.unwrap(function))))]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    handed = [each for call in calls for each in (*call.args, *(k.value for k in call.keywords))]
    if any(isinstance(each, ast.Name) and each.id == "options" for each in handed):
        return None
    own = [x for x in nodes if isinstance(x, ast.Attribute) and isinstance(x.value, ast.Name)]
    return {x.attr for x in own if x.value.id == "options"}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_inherited_option_is_read_or_handed_on(command):
    module = command_module(command)
    inherited = {
        field.name
        for cls in module.Options.__mro__[1:]
        if dataclasses.is_dataclass(cls)
        for field in dataclasses.fields(cls)
        if not field.metadata.get("python")
    }
    read = read_by(module.run)
    assert read is None or not inherited - read


def test_every_option_settingss_and_files_changes_a_task():
    tasks = [TASKS[name] for name in TASKS]
    for field in (*dataclasses.fields(TaskOptions), *dataclasses.fields(FileOptions)):
        if field.name != "task":
            default = 3 if "int" in str(field.type) else 0.5 if "float" in str(field.type) else "0"
            settings = {field.name: VALUES.get(field.name, default)}
            assert any(task.with_settings(settings) != task for task in tasks), field.name


def test_the_format_of_an_export_is_not_that_of_the_task_s_files():
    """Both options are called so: task.json of an export had "saved_model", and no file opened."""
    task = TASKS["classification"]
    assert task.with_settings(_settings(ExportOptions(model="m", name="n"))) == task
