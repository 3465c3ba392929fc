r"""Write vectors of text from chosen layers of a model, as features for other models.

  bert-tf features --model models/base --data reviews.csv --output vectors.npy --per text
  bert-tf features --model models/base --data eng.train --format conll --per word \
    --layers concat_last_four --output words.tfrecord
  bert-tf features --model models/base --data texts.txt --format lines --layers -1 -2 \
    --output tokens.jsonl

The output's extension chooses the format: .npy, .tfrecord or .jsonl; docs/features.md describes
their fields. Layers are numbered as Hugging Face's hidden_states, 0 for
the embeddings; from the end, -1 to -12 of a base model, as in the original's extract_features.py.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.files.outputs import check_output_file
from bert_tf.options import PathName, option
from bert_tf.tasks.task_options import FileOptions


@dataclass(kw_only=True)
class Options(CommandOptions, FileOptions):
    """Options of `bert-tf features`."""

    model: PathName = option(path=True, model=True)
    """model directory of any BERT, or a model of the Hugging Face hub, ORG/NAME."""
    data: PathName = option(path=True)
    """texts: .tsv, .csv, .jsonl, .conll, or another file and --format; "-" for standard input."""
    output: PathName = option(writes="file")
    """file to write, .npy, .tfrecord or .jsonl."""
    pair_column: str | None = None
    """column of the second text of a pair, by name or by number counted from 0."""
    layers: list[str] = option(factory=list)
    """embeddings, last, second_to_last, sum_last_four, concat_last_four, sum_all (without the
    embeddings), or numbers; the vectors of several are concatenated. By default last."""
    per: Literal["token", "word", "text"] = "token"
    """what gets a vector: token, every token, [CLS] and [SEP] included; word, every word, with long
    texts read in windows; or text, each text."""
    pooling: Literal["first", "mean", "pooler"] | None = None
    """pooling of a word's vectors (first, its first piece, the default; or mean) or of a text's
    (mean over its tokens, the default; first, [CLS]; or pooler, the pooled output)."""
    max_length: int | None = option(None, at_least=3)
    """maximum tokens that the model reads at once, [CLS] and [SEP] included; by default as many as
    it can. Longer texts are truncated, except with --per word."""
    batch_size: int = option(32, at_least=1)
    """texts per batch."""


@dataclass(kw_only=True, repr=False, eq=False)
class FeaturesResult(Result):
    """The outcome of `features`.

    Attributes:
        output: the file of vectors.
        vectors: number of vectors.
        width: numbers in each, float32.
        texts: number of texts.
        per: unit that gets a vector: token, word or text.
        remarks: on the texts, if there are any to make.
    """

    output: Path
    vectors: int
    width: int
    texts: int
    per: str
    remarks: list[str]

    def lines(self) -> list[str]:
        from bert_tf.commands.layer_features import how_to_read

        return [
            *self.remarks,
            f"{self.vectors:,} vectors of {self.width} float32, one per {self.per}, of "
            f"{self.texts:,} texts: {self.output}",
            f"Read it: {how_to_read(self.output)}  # docs/features.md",
        ]


def run(options: Options) -> FeaturesResult:
    """Writes vectors of text from chosen layers of a model, as `bert-tf features` does.

    Returns:
        The file, and what it holds.
    """
    output = check_output_file(options.output, [options.model, options.data])
    with progress("loading", shown=options.shown) as bar:
        from bert_tf.checkpoints.model_directory import read_weights
        from bert_tf.commands import layer_features
        from bert_tf.device_errors import memory_errors
        from bert_tf.models.encoder import BertEncoder
        from bert_tf.pipelines.examples.files import read_table
        from bert_tf.pipelines.examples.tagged_words import read_words
        from bert_tf.tokenization.tokenizer import BertTokenizer

        for file in layer_features.written_files(output, options.per):
            check_output_file(file, [options.model, options.data])
        if options.pooling == "pooler" and not read_weights(Path(options.model)).has("pooler."):
            raise InputError(f"{options.model} has no pooler: give --pooling first or mean")
        extract = layer_features.FeatureExtractor(
            BertEncoder.from_directory(options.model, dtype="float32"),
            BertTokenizer.from_directory(options.model),
            layers=options.layers,
            per=options.per,
            pooling=options.pooling,
            max_length=options.max_length or 0,
        )
        columns = {"text": options.text_column or "text", "text_pair": options.pair_column}
        texts = read_words(
            read_table(options.data, options.format, header=options.header),
            {role: column for role, column in columns.items() if column is not None},
        )
        done = cut = vectors = 0
        smaller = memory_errors("give a smaller --batch_size or --max_length")
        with smaller, layer_features.feature_file(output, extract.width) as write:
            for record in extract(texts.columns, options.batch_size):
                cut += record.pop("cut")
                vectors += len(record["vectors"]) if "vectors" in record else 1
                write(record)
                done += 1
                bar.update(done, total=len(texts), note="and computing")
    remarks = texts.remarks()
    if cut:
        positions = extract.encoder.config.max_position_embeddings
        more = f"--max_length {positions} keeps more, " * (extract.max_length < positions)
        remarks.append(
            f"{cut:,} of {done:,} texts were cut to {extract.max_length} tokens: {more}--per word "
            "reads texts of any length"
        )
    return FeaturesResult(
        output=Path(options.output),
        vectors=vectors,
        width=extract.width,
        texts=done,
        per=options.per,
        remarks=remarks,
    )


COMMAND = Command(name="features", help=__doc__, options=Options, run=run)
features = COMMAND.function("features")
