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

import dataclasses
from dataclasses import dataclass

from bert_tf.cli.progress import console, progress
from bert_tf.errors import InputError
from bert_tf.options import option
from bert_tf.outputs import check_output_file, check_output_folder
from bert_tf.tasks.options import FileOptions, TaskOptions


@dataclass(kw_only=True)
class Options(TaskOptions, FileOptions):
    """Options of `bert-tf predict`."""

    model: str = option(path=True, model=True)
    """saved_models/<name>, whose newest version answers, the folder of one version, a fine-tuned
    model directory, or a model of the Hugging Face hub, ORG/NAME."""
    text: list[str] = option(factory=list, first=True)
    """raw strings."""
    pair: list[str] = option(factory=list, first=True)
    """second strings, one per text, for a model of pairs."""
    input: str | None = option(None, path=True)
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
    output: str | None = option(None, writes="file")
    """file to write: .csv, .tsv, or JSON lines; by default JSON lines on standard output."""
    submission: str | None = option(None, writes="folder")
    """folder for the official files of the task."""
    batch_size: int = option(32, at_least=1)
    """texts per batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.text) == bool(self.input):
            raise InputError("give exactly one of --text and --input")
        if self.submission and not self.input:
            raise InputError("--submission is for files and data sets: give --input")
        if self.submission and self.signature:
            raise InputError("--submission has the task's answers: leave --signature out")
        if self.pair and len(self.pair) != len(self.text):
            raise InputError(
                f"{len(self.pair)} --pair strings for {len(self.text)} --text strings: give as many"
            )


def run(options: Options) -> None:
    source = options.input
    inputs = [options.model, source]
    output = options.output and check_output_file(options.output, inputs)
    folder = options.submission and check_output_folder(options.submission, inputs)
    with progress("loading", total=1) as bar:
        from bert_tf.serving.predictor import answer, answer_rows, rows
        from bert_tf.tasks.kinds.kind import Answered
        from bert_tf.trained.answer_files import beside, is_table, json_line, write_answers
        from bert_tf.trained.fine_tuned import load
        from pipelines.examples.labelled_text import read_columns_of

        model = load(options.model, dataclasses.asdict(options))
        examples = None
        if source:
            task = model.reader(options.signature, source)
            split = task.split_of(source, options.split)
            examples = task.read(source, options.split, labelled=False)
            if folder:
                task.check_submission(split, examples, model.labels)
            given = model.strings(examples, options.signature)
            path = source if source == "-" else examples.path
            columns = read_columns_of(path, examples.lines, task.format)
        else:
            names = (*model.inputs_of(options.signature), "text_pair")
            strings = zip(names, (options.text, options.pair), strict=False)
            given = {name: texts for name, texts in strings if texts}
            columns = {}
        count = len(next(iter(given.values())))
        signature = model.function(options.signature or model.signature_for(given))

        def answered(number: int) -> None:
            bar.update(number, total=count, note="and answering")

        if folder:
            answers = answer(signature, given, options.batch_size, answered=answered)
            found = list(rows(answers))
        else:
            found = answer_rows(signature, given, options.batch_size, answered=answered)
        ids = {"id": examples.columns["id"]} if examples and "id" in examples.columns else {}
        shown = ids | {name.removeprefix("text_"): texts for name, texts in given.items()}
        if columns and output and is_table(output):
            shown = columns
        else:  # the texts that were read have names of their own
            shown |= {name: x for name, x in columns.items() if x not in shown.values()}
        for i, row in enumerate(found):
            found[i] = beside({name: values[i] for name, values in shown.items()}, row)
        if folder and examples:
            task.write_submission(folder, split, Answered(task, examples, answers, model.labels))
        remarks = examples.remarks() if examples else []
        truncated = [row["truncated"] for row in found if "truncated" in row]
        if options.signature is None and truncated and (examples or any(truncated)):
            remarks.append(model.truncation(truncated))
    for remark in remarks:
        console.print(remark)
    if output:
        write_answers(output, found)
        console.print(f"{len(found)} predictions: {options.output}")
    if folder:
        console.print(f"Official files of {len(found)} predictions: {options.submission}")
    if not output and not folder:
        for row in found:
            print(json_line(row))
