"""Answer raw strings, from an exported SavedModel or a fine-tuned model directory.

  bert-tf predict --model saved_models/classifier --text "a raw string" "another one"
  bert-tf predict --model runs/classifier/best --input new.tsv --output predictions.jsonl
  bert-tf predict --model runs/cola/best --input glue/CoLA --split test --submission submission
  cat texts.txt | bert-tf predict --model saved_models/classifier --input - --format lines

Writes one JSON object per text. A classifier gives the label, its probability, and the
probabilities of all labels; a regression model gives the score; a tagger gives entities and words
with their spans; a model for choices gives the number and the probability of the best one; a model
of SQuAD answers the question --text in the context --pair. --submission writes the official files:
GLUE's TSV, such as CoLA.tsv; predictions.json, nbest_predictions.json and null_odds.json of SQuAD;
CoNLL's columns; predictions.tsv for data of your own.
"""

import dataclasses
import json
from dataclasses import dataclass

from bert_tf.atomic import write_text
from bert_tf.cli.progress import console, progress
from bert_tf.errors import InputError
from bert_tf.options import option
from bert_tf.outputs import check_output_file, check_output_folder
from bert_tf.tasks.options import FileOptions, TaskOptions


@dataclass(kw_only=True)
class Options(TaskOptions, FileOptions):
    """Options of `bert-tf predict`.

    Attributes:
        model: saved_models/<name>, whose newest version answers, the folder of one version, or a
            fine-tuned model directory.
        text: raw strings.
        pair: second strings, one per text, for a model of pairs.
        input: texts: a .tsv, .csv or .jsonl file; the folder of a data set's published files, or
            its name in TensorFlow Datasets, such as tfds:glue/mnli; "-" for standard input.
        split: split to read from a data set, such as validation; MNLI has test_mismatched and ax.
        signature: function of the model to ask, such as embed or top_20 (docs/signatures.md); by
            default the one that gives the task's answers.
        label_map: names to answer for labels of a model directory, as MODEL_LABEL=LABEL.
        output: .jsonl file to write; by default standard output.
        submission: folder for the official files of the task.
        batch_size: texts per batch.
    """

    model: str
    text: list[str] = option(factory=list)
    pair: list[str] = option(factory=list)
    input: str | None = None
    split: str = "test"
    signature: str | None = None
    label_map: list[str] = option(factory=list)
    output: str | None = None
    submission: str | None = None
    batch_size: int = option(32, at_least=1)


def run(options: Options) -> None:
    source = options.input
    if bool(options.text) == bool(source):
        raise InputError("give exactly one of --text and --input")
    if options.submission and not source:
        raise InputError("--submission is for files and data sets: give --input")
    if options.submission and options.signature:
        raise InputError("--submission has the task's answers: leave --signature out")
    if options.pair and len(options.pair) != len(options.text):
        raise InputError(
            f"{len(options.pair)} --pair strings for {len(options.text)} --text strings: "
            "give as many"
        )
    inputs = [options.model, source]
    output = options.output and check_output_file(options.output, inputs)
    folder = options.submission and check_output_folder(options.submission, inputs)
    with progress("loading", total=1) as bar:
        from bert_tf.serving.predictor import answer, answer_rows, rows
        from bert_tf.tasks.prediction import load

        model = load(options.model, dataclasses.asdict(options))
        task, examples = model.reader(options.signature), None
        if source:
            split = task.split_of(source, options.split)
            examples = task.read(source, options.split, labelled=False)
            if folder:
                task.check_submission(split, examples, model.labels)
            given = model.strings(examples, options.signature)
        else:
            names = (*model.inputs(options.signature), "text_pair")
            strings = zip(names, (options.text, options.pair), strict=False)
            given = {name: texts for name, texts in strings if texts}
        shown = {name.removeprefix("text_"): texts for name, texts in given.items()}
        if examples and "id" in examples.columns:
            shown = {"id": examples.columns["id"], **shown}
        count = len(next(iter(given.values())))
        signature = model.signature(options.signature or model.signature_for(given))

        def answered(number: int) -> None:
            bar.update(number, total=count, note="and answering")

        if folder:
            answers = answer(signature, given, options.batch_size, answered=answered)
            found = list(rows(answers))
        else:
            found = answer_rows(signature, given, options.batch_size, answered=answered)
        lines = []
        for i, row in enumerate(found):
            texts = {name: values[i] for name, values in shown.items()}
            lines.append(json.dumps({**texts, **row}, ensure_ascii=False))
        if folder and examples:
            task.kind.write_submission(folder, task, split, examples, answers, model.labels)
        cut, remark = model.cut(given) if options.signature is None else (0, "")
        remarks = [*(examples.remarks() if examples else ()), remark if cut or examples else ""]
    for remark in filter(None, remarks):
        console.print(remark)
    if output:
        write_text(output, "".join(f"{line}\n" for line in lines))
        console.print(f"{len(lines)} predictions: {options.output}")
    if folder:
        console.print(f"Official files of {len(lines)} predictions: {options.submission}")
    if not output and not folder:
        for line in lines:
            print(line)
