"""Answer raw strings, from an export or a fine-tuned model directory.

  bert-tf predict --model saved_models/classifier --text "a raw string" "another one"
  bert-tf predict --model runs/classifier/best --input new.csv --output answers.csv
  bert-tf predict --model runs/cola/best --input glue/CoLA --split test --submission submission
  cat texts.txt | bert-tf predict --model saved_models/classifier --input - --format lines

Writes one JSON object per text, or a table if --output ends in .csv or .tsv. Both keep the columns
of the input; a column with the same name as one of the answers becomes input_NAME. The answers are,
for classification, the label and the probabilities of all labels; for regression, the score; for
tagging, entities and words with their spans; for multiple choice, the number and the probability of
the best choice; for SQuAD, the answer to the question --text in the context --pair.

--submission writes the official files: GLUE's TSV, such as CoLA.tsv; predictions.json,
nbest_predictions.json and null_odds.json for SQuAD; CoNLL's columns; predictions.tsv for your own
data.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.commands.command import COLUMNS, Command, CommandOptions
from bert_tf.commands.data_in_memory import columns_of, examples_in_memory
from bert_tf.commands.progress import console, progress
from bert_tf.commands.result import Result, Table
from bert_tf.errors import InputError
from bert_tf.files.outputs import check_output_file, check_output_folder
from bert_tf.options import PathName, option
from bert_tf.startup import pack_weights
from bert_tf.tasks.task_options import FileOptions, TaskOptions

if TYPE_CHECKING:
    from bert_tf.pipelines.examples.table import Examples


@dataclass(kw_only=True)
class Options(CommandOptions, TaskOptions, FileOptions):
    """Options of `bert-tf predict`."""

    model: PathName = option(path=True, model=True)
    """saved_models/<name>, whose newest version answers, the folder of one version, OpenVINO's
    model.xml, a fine-tuned model directory, the URL of one of these, or a model of the Hugging Face
    hub, ORG/NAME."""
    text: list[str] = option(factory=list, first=True)
    """raw strings."""
    pair: list[str] = option(factory=list, first=True)
    """second strings, one per text, for a model of pairs."""
    input: Any = option(None, path=True, data=COLUMNS)
    """texts: a .tsv, .csv or .jsonl file; a .txt file with one text per line; the folder of a data
    set's published files, or its name in TensorFlow Datasets, such as tfds:glue/mnli; "-" for
    standard input."""
    split: str = "test"
    """split to read from a data set, such as validation; MNLI has test_mismatched and ax."""
    signature: str | None = None
    """signature to call, such as embed or top_20 (docs/signatures.md); by default the one with the
    task's answers."""
    label_map: list[str] = option(factory=list)
    """new names for the labels of a model directory, as MODEL_LABEL=LABEL."""
    output: PathName | None = option(None, writes="file")
    """file to write: .csv, .tsv, or JSON lines; by default none, and the command
    prints JSON lines."""
    submission: PathName | None = option(None, writes="folder")
    """folder for the official files of the task."""
    batch_size: int = option(32, at_least=1)
    """texts per batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.text) == (self.input is not None):
            raise InputError("give exactly one of --text and --input")
        if self.submission and not isinstance(self.input, str):
            raise InputError("--submission is for files and data sets: give --input")
        if self.submission and self.signature:
            raise InputError("--submission has the task's answers: leave --signature out")
        if self.pair and len(self.pair) != len(self.text):
            raise InputError(
                f"{len(self.pair)} --pair strings for {len(self.text)} --text strings: give as many"
            )


@dataclass(kw_only=True, repr=False, eq=False)
class Predictions(Result, Sequence[dict[str, Any]]):
    """The outcome of `predict`: a sequence of answers, each a dict.

    Attributes:
        rows: an answer for each text, with the columns of the input.
        remarks: what a reader of the answers should know, a sentence each.
        output: file that was written, if any.
        submission: folder of the official files, if they were written.
    """

    rows: list[dict[str, Any]]
    remarks: list[str] = field(default_factory=list)
    output: Path | None = None
    submission: Path | None = None

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def lines(self) -> list[str]:
        lines = list(self.remarks)
        if self.output is not None:
            lines.append(f"{len(self)} predictions: {self.output}")
        if self.submission is not None:
            lines.append(f"Official files of {len(self)} predictions: {self.submission}")
        return lines

    def __repr__(self) -> str:
        return "\n".join([repr(self.rows), *self.lines()])

    def tables(self) -> Iterable[Table]:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        rows = [[_cell(row.get(name, "")) for name in names] for row in self.rows]
        return [Table("Predictions", names, rows)]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_cell(item)}" for name, item in value.items())
    return str(value)


def run(options: Options) -> Predictions:
    """Answers raw strings from a SavedModel or a model directory, as `bert-tf predict` does.

    ```python
    bert_tf.predict(model="runs/reviews/best", text=["a good film"])[0]["label"]
    ```

    Returns:
        The answers, a dict for each text, with the columns of the input.
    """
    output = options.output and check_output_file(options.output)
    folder = options.submission and check_output_folder(options.submission)
    with progress("loading", total=1, shown=options.shown) as bar:
        from bert_tf.commands.answer_files import beside, is_table, write_answers
        from bert_tf.pipelines.examples.files import read_columns_of
        from bert_tf.serving.predictor import answer, answer_rows, rows
        from bert_tf.tasks.kinds.kind import Answered
        from bert_tf.tasks.predictions import check_submission, write_submission
        from bert_tf.text.opening import for_pairs, open_answerer

        source = options.input
        model = open_answerer(options.model, vars(options) | {"input": isinstance(source, str)})
        examples = None
        columns: dict[str, Sequence[Any]] = {}
        if source is not None:
            if isinstance(source, str):
                task = model.reader(options.signature, source)
                split = task.split_of(source, options.split)
                examples = task.read(source, options.split, labelled=False)
                columns |= read_columns_of(examples)
            else:
                task = model.reader(options.signature, "")
                with_pairs, examples = examples_in_memory(task, source, labelled=False)
                if with_pairs.pair != task.pair and options.signature is None:
                    model = for_pairs(model, options.model)
                columns |= columns_of(source)
            if folder:
                check_submission(task, split, examples, model.labels)
            strings = model.strings(examples, options.signature)
        else:
            model, strings = _given_strings(model, options)
        signature = model.function(options.signature or model.signature_for(strings))
        count = len(next(iter(strings.values())))
        answered = functools.partial(bar.update, total=count, note="and answering")
        if folder:
            answers = answer(signature, strings, options.batch_size, answered=answered)
            predictions = list(rows(answers))
        else:
            predictions = answer_rows(signature, strings, options.batch_size, answered=answered)
        inputs: dict[str, Sequence[Any]] = {}
        others = columns
        if not (columns and output and is_table(output)):  # a table's columns name its texts
            inputs, others = _inputs_and_others(strings, examples, columns)
        for i, row in enumerate(predictions):
            predictions[i] = beside(_row(others, i), row, _row(inputs, i))
        if folder and examples:
            write_submission(folder, split, Answered(task, examples, answers, model.labels))
        remarks = examples.remarks() if examples else []
        remarks += _truncation(model, options, predictions)
    if output:
        write_answers(output, predictions)
    return Predictions(
        rows=predictions,
        remarks=remarks,
        notices=bar.notices,
        output=Path(options.output) if options.output else None,
        submission=Path(options.submission) if options.submission else None,
    )


def _given_strings(model: Any, options: Options) -> tuple[Any, dict[str, list[str]]]:
    """The strings of --text and --pair by the model's inputs, and the model, for pairs if given."""
    from bert_tf.text.opening import for_pairs

    names = (*model.inputs_of(options.signature), "text_pair")
    if options.pair and model.task.pair is None and names == ("text", "text_pair"):
        model = for_pairs(model, options.model)
    pairs = zip(names, (options.text, options.pair), strict=False)
    return model, {name: texts for name, texts in pairs if texts}


def _truncation(
    model: Any, options: Options, predictions: Sequence[Mapping[str, Any]]
) -> list[str]:
    """A remark on texts that were truncated; of a file or a table, on how many were not, too."""
    truncated = [row["truncated"] for row in predictions if "truncated" in row]
    is_told = truncated and (options.input is not None or any(truncated))
    return [model.truncation(truncated)] if is_told and options.signature is None else []


def _row(columns: Mapping[str, Sequence[Any]], index: int) -> dict[str, Any]:
    return {name: values[index] for name, values in columns.items()}


def _inputs_and_others(
    strings: Mapping[str, Sequence[str]],
    examples: "Examples | None",
    columns: Mapping[str, Sequence[Any]],
) -> tuple[dict[str, Sequence[Any]], dict[str, Sequence[Any]]]:
    """The columns that were answered, by role, and the other columns of the input."""
    inputs: dict[str, Sequence[Any]] = {
        name.removeprefix("text_"): texts for name, texts in strings.items()
    }
    others = dict(columns)
    if not examples:
        return inputs, others
    inputs = {n: x for n, x in examples.columns.items() if n == "id"} | inputs
    for name in columns:
        role = (examples.source.role_of(name) or "").removeprefix("text_")
        if role == name:  # as the input has it, such as a list of words
            inputs[name] = others.pop(name)
        elif role in inputs:
            del others[name]
    return inputs, others


def show(result: Predictions, options: Options) -> None:
    for line in result.lines():
        console.print(line)
    if result.output is None and result.submission is None:
        from bert_tf.commands.answer_files import json_line

        for row in result.rows:
            print(json_line(row))


COMMAND = Command(
    name="predict",
    help=__doc__,
    options=Options,
    run=run,
    show=show,
    prepare_process=lambda _: pack_weights(),
)
predict = COMMAND.function("predict")
