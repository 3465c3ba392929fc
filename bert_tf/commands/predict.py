"""Answer raw strings, from an exported SavedModel or a fine-tuned model directory.

  bert-tf predict --model saved_models/classifier --text "a raw string" "another one"
  bert-tf predict --model runs/classifier/best --input new.csv --output answers.csv
  bert-tf predict --model runs/cola/best --input glue/CoLA --split test --submission submission
  cat texts.txt | bert-tf predict --model saved_models/classifier --input - --format lines

Writes one JSON object per text, or a table if --output ends in .csv or .tsv. Both keep all columns
of the input; one that has the name of an answer's column becomes input_NAME. A classifier gives the
label, its probability, and the probabilities of all labels; a regression model gives the score; a
tagger gives entities and words with their spans; a model for choices gives the number and the
probability of the best one; a model of SQuAD answers the question --text in the context --pair.
--submission writes the official files: GLUE's TSV, such as CoLA.tsv; predictions.json,
nbest_predictions.json and null_odds.json of SQuAD; CoNLL's columns; predictions.tsv for data of
your own.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_tf.commands.data_in_memory import columns_of, examples_in_memory
from bert_tf.commands.function import COLUMNS, CommandOptions, function
from bert_tf.commands.progress import console, progress
from bert_tf.commands.result import Result, Table
from bert_tf.errors import InputError
from bert_tf.files.outputs import check_output_file, check_output_folder
from bert_tf.options import PathName, option
from bert_tf.serving.packed_weights import pack_weights, types_of
from bert_tf.tasks.task_options import FileOptions, TaskOptions


@dataclass(kw_only=True)
class Options(CommandOptions, TaskOptions, FileOptions):
    """Options of `bert-tf predict`."""

    model: PathName = option(path=True, model=True)
    """saved_models/<name>, whose newest version answers, the folder of one version, a fine-tuned
    model directory, the URL of one of these, or a model of the Hugging Face hub, ORG/NAME."""
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
    """function of the model to ask, such as embed or top_20 (docs/signatures.md); by default the
    one that gives the task's answers."""
    label_map: list[str] = option(factory=list)
    """names to answer for labels of a model directory, as MODEL_LABEL=LABEL."""
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


def prepare(options: Options) -> None:
    pack_weights(types_of([options.model]))


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
        from bert_tf.models.opening import for_pairs, open_answerer
        from bert_tf.pipelines.examples.files import read_columns_of
        from bert_tf.serving.predictor import answer, answer_rows, rows
        from bert_tf.tasks.kinds.kind import Answered
        from bert_tf.tasks.predictions import check_submission, write_submission

        source = options.input
        model = open_answerer(options.model, vars(options) | {"input": isinstance(source, str)})
        examples = None
        if source is not None:
            if isinstance(source, str):
                task = model.reader(options.signature, source)
                split = task.split_of(source, options.split)
                examples = task.read(source, options.split, labelled=False)
                columns = read_columns_of(examples)
            else:
                task = model.reader(options.signature, "")
                with_pairs, examples = examples_in_memory(task, source, labelled=False)
                if with_pairs.pair != task.pair and options.signature is None:
                    model = for_pairs(model, options.model)
                columns = columns_of(source)
            if folder:
                check_submission(task, split, examples, model.labels)
            strings = model.strings(examples, options.signature)
        else:
            names = (*model.inputs_of(options.signature), "text_pair")
            if options.pair and model.task.pair is None and names == ("text", "text_pair"):
                model = for_pairs(model, options.model)
            pairs = zip(names, (options.text, options.pair), strict=False)
            strings = {name: texts for name, texts in pairs if texts}
            columns = {}
        count = len(next(iter(strings.values())))
        signature = model.function(options.signature or model.signature_for(strings))
        answered = functools.partial(bar.update, total=count, note="and answering")
        if folder:
            answers = answer(signature, strings, options.batch_size, answered=answered)
            predictions = list(rows(answers))
        else:
            predictions = answer_rows(signature, strings, options.batch_size, answered=answered)
        inputs: dict[str, Sequence[Any]] = {}
        if not (columns and output and is_table(output)):  # a table's columns name its texts
            inputs = {name.removeprefix("text_"): texts for name, texts in strings.items()}
            if examples:
                inputs = {n: x for n, x in examples.columns.items() if n == "id"} | inputs
                for name in [*columns]:
                    role = (examples.source.role_of(name) or "").removeprefix("text_")
                    if role == name:  # as the input has it, such as a list of words
                        inputs[name] = columns.pop(name)
                    elif role in inputs:
                        del columns[name]
        for i, row in enumerate(predictions):
            read, others = ({n: x[i] for n, x in table.items()} for table in (inputs, columns))
            predictions[i] = beside(others, row, read)
        if folder and examples:
            write_submission(folder, split, Answered(task, examples, answers, model.labels))
        remarks = examples.remarks() if examples else []
        truncated = [row["truncated"] for row in predictions if "truncated" in row]
        if options.signature is None and truncated and (examples or any(truncated)):
            remarks.append(model.truncation(truncated))
    if output:
        write_answers(output, predictions)
    return Predictions(
        rows=predictions,
        remarks=remarks,
        notices=bar.notices,
        output=Path(options.output) if options.output else None,
        submission=Path(options.submission) if options.submission else None,
    )


def show(result: Predictions, options: Options) -> None:
    for line in result.lines():
        console.print(line)
    if result.output is None and result.submission is None:
        from bert_tf.commands.answer_files import json_line

        for row in result.rows:
            print(json_line(row))


predict = function("predict", Options, run)
