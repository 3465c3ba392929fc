"""Answer raw strings from an exported SavedModel.

  bert-tf predict --model saved_models/classifier --text "a raw string" "another one"
  bert-tf predict --model saved_models/classifier --input new.tsv --output predictions.jsonl

One JSON object a text: its label, the label's probability, and the probabilities of all labels.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from bert_tf.atomic import replace_file
from bert_tf.cli.progress import console, progress
from bert_tf.errors import InputError


@dataclass(kw_only=True)
class Options:
    """Options of `bert-tf predict`.

    Attributes:
        model: saved_models/<name>, whose newest version answers, or the folder of one version.
        text: raw strings.
        pair: as many second strings, for a model of pairs.
        input: file of texts instead: .tsv, .csv or .jsonl.
        text_column: column of the text in the file.
        pair_column: column of the second text, for a model of pairs.
        output: .jsonl file to write; standard output without it.
        batch_size: texts answered at once.
    """

    model: str
    text: list[str] = field(default_factory=list)
    pair: list[str] = field(default_factory=list)
    input: str | None = None
    text_column: str = "text"
    pair_column: str | None = None
    output: str | None = None
    batch_size: int = 32


def run(options: Options) -> None:
    """Runs `bert-tf predict`."""
    if bool(options.text) == bool(options.input):
        raise InputError("nothing to answer, or two things: give either --text or --input")
    if options.pair and len(options.pair) != len(options.text):
        raise InputError(
            f"{len(options.pair)} --pair strings for {len(options.text)} --text strings: "
            "give as many"
        )
    with progress("loading") as bar:
        from bert_tf.serving.predictor import Predictor
        from pipelines.examples.labelled_text import read_labelled_text

        texts: list[str] = options.text
        pairs: list[str] | None = options.pair or None
        if options.input:
            examples = read_labelled_text(
                options.input, text_column=options.text_column, pair_column=options.pair_column
            )
            texts, pairs = examples.texts, examples.pairs
        predictor = Predictor(options.model)
        lines = []
        answers = predictor(texts, pairs, batch_size=options.batch_size)
        for i, answer in enumerate(answers):
            given = {"text": texts[i], **({"pair": pairs[i]} if pairs else {})}
            lines.append(json.dumps({**given, **answer}, ensure_ascii=False))
            bar.update(i + 1, total=len(texts), note="and answering")
    if options.output:
        with replace_file(Path(options.output)) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        console.print(f"{len(lines)} predictions: {options.output}", markup=False)
    else:
        for line in lines:
            print(line)
