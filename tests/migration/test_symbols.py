import importlib
import inspect
import re

from cases import for_each

import bert_tf
from bert_tf.cli import COMMANDS, command_named
from bert_tf.migration.symbols import LIBRARIES, find, table
from bert_tf.options import option_helps
from bert_tf.tasks.task_table import TASKS

ROWS = [row for rows in table().values() for row in rows]
TEXT = " ".join(row.instead for row in ROWS)
FORMS = {"name", "method", "attribute", "argument", "text", "number", "call", "key", "position"}
FORMS |= {"override", "script", "flag", "setting"}


def test_every_row_has_advice_or_a_reason():
    assert len(ROWS) > 500
    for row in ROWS:
        assert row.library in LIBRARIES and row.form in FORMS, row
        assert row.what, row
        assert bool(row.instead) != bool(row.because), row
        # None is hidden by an earlier one, or listed twice.
        if not set("*[") & set(row.symbol):
            assert find(row.library, row.form, row.symbol) is row, row
    assert len({(row.library, row.form, row.symbol) for row in ROWS}) == len(ROWS)


def test_commands_and_options_that_it_names_exist():
    """An option belongs to the command before it, or to any where there is none."""
    options = {name: set(option_helps(command_named(name).options)) for name in COMMANDS}
    everywhere = set().union(*options.values()) | {"config"}
    for row in ROWS:
        for command in re.findall(r"bert-tf ([a-z]+)((?: --?\w+(?: [A-Za-z./]+)?)*)", row.instead):
            name, rest = command
            if name in COMMANDS:
                assert set(re.findall(r"--(\w+)", rest)) <= options[name] | {"config"}, row
        assert set(re.findall(r"--(\w+)", row.instead)) <= everywhere, row
    verbs = set(re.findall(r"(?<!of )bert-tf (\w+)", TEXT))
    assert verbs - set(COMMANDS) <= {"commands", "does", "generates", "numbers", "runs", "sends"}


# Functions of what commands do, by command.
FUNCTIONS = {name: name for name in ("pretrain", "finetune", "evaluate", "predict", "search")}
FUNCTIONS |= {"vocab": "learn_vocabulary", "shards": "make_shards", "export": "export_model"}


def test_a_command_for_python_code_comes_with_its_function():
    """Who wrote Python is told the function that does the command's work."""
    for row in ROWS:
        if row.form in ("script", "flag", "setting"):
            continue
        for command in re.findall(r"bert-tf ([a-z]+)", row.instead):
            if command in FUNCTIONS:
                assert f"bert_tf.{FUNCTIONS[command]}" in row.instead, row


def test_arguments_of_functions_that_it_names_exist():
    calls = re.findall(r"bert_tf\.([a-z_]+)\((\w+=.*?)\)(?!\))", TEXT)
    assert {name for name, _ in calls} <= {*FUNCTIONS.values()}
    assert len(calls) > 20
    for name, arguments in calls:
        known = inspect.signature(getattr(bert_tf, name)).parameters
        assert set(re.findall(r"(\w+)=", arguments)) <= set(known), (name, arguments)


def test_tasks_and_names_that_it_gives_exist():
    for row in ROWS:
        assert set(re.findall(r'(?:--task |task=")([a-z]\w+)', row.instead)) <= set(TASKS)
    for path in set(re.findall(r"bert_tf\.([\w.]+)", TEXT)):
        at = bert_tf
        for part in path.rstrip(".").split("."):
            if at is bert_tf and part == "layers":
                at = importlib.import_module("bert_tf.networks")
            else:
                assert hasattr(at, part), path
                at = getattr(at, part)


@for_each(
    "library form symbol says",
    ("transformers", "name", "TFRobertaModel", ""),
    ("transformers", "name", "TFDistilBertForTokenClassification", "bert_tf.BertTagger"),
    ("transformers", "name", "DistilBertTokenizerFast", "bert_tf.BertTokenizer"),
    ("transformers", "argument", "padding=max_length", None),
    ("keras_hub", "name", "GemmaCausalLM", ""),
    ("official", "setting", "trainer.optimizer_config.warmup.polynomial.power", "--warmup"),
    ("*", "text", "https://tfhub.dev/tensorflow/bert_en_uncased_preprocess/3", "Preprocessor"),
    ("*", "text", "https://tfhub.dev/tensorflow/small_bert/bert_en/2", "bert-tf convert"),
    ("*", "text", "https://tfhub.dev/tensorflow/talkheads_ggelu_bert_en_base/1", ""),
    ("keras_bert", "name", "load_trained_model_from_checkpoint", "bert-tf convert"),
)
def test_rows(library, form, symbol, says):
    row = find(library, form, symbol)
    if says is None:
        assert row is None
    else:
        assert says in row.instead and bool(row.instead) == bool(says)
