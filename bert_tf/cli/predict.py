"""Answer raw strings, from an exported SavedModel or a fine-tuned model directory.

  bert-tf predict --model saved_models/classifier --text "a raw string" "another one"
  bert-tf predict --model runs/classifier/best --input new.tsv --output predictions.jsonl
  cat texts.txt | bert-tf predict --model saved_models/classifier --input - --format lines

Writes one JSON object per text. A classifier gives the label, its probability, and the
probabilities of all labels; a regression model gives the score; a tagger gives entities and words
with their spans; a model for choices gives the number and the probability of the best one; a model
of SQuAD answers the question --text in the context --pair.
"""

import dataclasses
import json
from dataclasses import dataclass

from bert_tf.atomic import replace_file
from bert_tf.cli.progress import console, progress
from bert_tf.errors import InputError
from bert_tf.options import option
from bert_tf.outputs import check_output_file
from bert_tf.tasks.options import FileOptions, TaskOptions


@dataclass(kw_only=True)
class Options(TaskOptions, FileOptions):
    """Options of `bert-tf predict`.

    Attributes:
        model: saved_models/<name>, whose newest version answers, the folder of one version, or a
            fine-tuned model directory.
        text: raw strings.
        pair: second strings, one per text, for a model of pairs.
        input: file of texts: .tsv, .csv or .jsonl; "-" for standard input.
        label_map: names to answer for labels of a model directory, as MODEL_LABEL=LABEL.
        output: .jsonl file to write; by default standard output.
        batch_size: texts per batch.
    """

    model: str
    text: list[str] = option(factory=list)
    pair: list[str] = option(factory=list)
    input: str | None = None
    label_map: list[str] = option(factory=list)
    output: str | None = None
    batch_size: int = option(32, at_least=1)


def run(options: Options) -> None:
    if bool(options.text) == (options.input is not None):
        raise InputError("give exactly one of --text and --input")
    if options.pair and len(options.pair) != len(options.text):
        raise InputError(
            f"{len(options.pair)} --pair strings for {len(options.text)} --text strings: "
            "give as many"
        )
    inputs = [options.model, *([options.input] if options.input not in (None, "-") else [])]
    output = options.output and check_output_file(options.output, inputs)
    with progress("loading") as bar:
        from bert_tf.serving.predictor import answer, rows
        from bert_tf.tasks.prediction import load

        model = load(options.model, dataclasses.asdict(options))
        if options.input is None:
            names = (*model.task.kind.inputs(model.task), "text_pair")
            strings = zip(names, (options.text, options.pair), strict=False)
            given = {name: texts for name, texts in strings if texts}
        else:
            given = model.read(options.input)
        lines: list[str] = []
        for outputs in answer(model.signature(list(given)), given, options.batch_size):
            for row in rows(outputs):
                texts = {name.removeprefix("text_"): given[name][len(lines)] for name in given}
                lines.append(json.dumps({**texts, **row}, ensure_ascii=False))
            bar.update(len(lines), total=len(next(iter(given.values()))), note="and answering")
    if output:
        with replace_file(output) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        console.print(f"{len(lines)} predictions: {options.output}")
    else:
        for line in lines:
            print(line)
