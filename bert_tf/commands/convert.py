r"""Convert a BERT into a model directory, or a model directory into another format.

  bert-tf convert uncased_L-2_H-128_A-2/ models/tiny
  bert-tf convert runs/pretrained/best preset/ --to keras_hub
  bert-tf convert models/base models/base-bf16 --dtype bfloat16

The source may be a checkpoint of Google's original code (TensorFlow 1), a Hugging Face directory
(with tf_model.h5, too), a KerasHub preset, a checkpoint of TensorFlow's Model Garden or one of TF
Hub's SavedModels: convert recognizes it by its files. Weights are copied bit for bit.
docs/checkpoints.md lists what each format holds.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import command_line, progress
from bert_tf.commands.result import Result
from bert_tf.options import PathName, option

if TYPE_CHECKING:
    from bert_tf.checkpoints.formats import Format
    from bert_tf.checkpoints.other_formats.conversion import Conversion


@dataclass(kw_only=True)
class Options(CommandOptions):
    """Options of `bert-tf convert`."""

    source: PathName = option(positional=True, path=True, model=True)
    """folder of a model, prefix of a TensorFlow checkpoint (models/bert_model.ckpt), or a model of
    the Hugging Face hub, ORG/NAME."""
    output: str = option(positional=True)
    """folder to write."""
    to: Literal["hugging_face", "tf1", "keras_hub"] = "hugging_face"
    """format to write; Model Garden's tf2_bert_encoder_checkpoint_converter reads tf1."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """float type of the tensors in a Hugging Face directory."""
    do_lower_case: bool | None = None
    """whether the model is uncased; by default what its files or its name say."""
    shard_gigabytes: float = option(5.0, above=0, at_most=1_000_000)
    """largest weights file of a Hugging Face directory; a larger model has several."""
    layers: int | None = option(None, at_least=1)
    """number of encoder layers to keep, evenly spaced up to the last one, to make a student for
    knowledge distillation (bert-tf finetune --teacher)."""
    overwrite: bool = False
    """replace an earlier output of this command."""


@dataclass(kw_only=True, repr=False, eq=False)
class ConvertResult(Result):
    """The outcome of `convert`.

    Attributes:
        output: the folder written.
        to: its format.
        conversion: the source, the model and the files written.
    """

    output: Path
    to: "Format"
    conversion: "Conversion"

    def lines(self) -> list[str]:
        from bert_tf.checkpoints.formats import TITLES
        from bert_tf.checkpoints.weight_names import all_parts

        done = self.conversion
        model = self.conversion.model
        config = self.conversion.model.config
        parts = ["encoder"]
        for part, title in all_parts().items():
            if model.has(part):
                parts.append(title)
            elif part in ("pooler.", "cls.predictions.", "cls.seq_relationship."):
                parts.append(f"no {title}")
        return [
            f"Found {TITLES[done.source.format]}: {done.source.path}",
            f"  {config.num_hidden_layers} layers, {config.hidden_size} wide, "
            f"{config.num_attention_heads} heads, {config.vocab_size} pieces; {', '.join(parts)}",
            *(f"  {note}" for note in model.notes),
            f"Wrote {TITLES[self.to]}: {self.output} ({', '.join(done.files)})",
            f"Next: {self._next_step()}",
        ]

    def _next_step(self) -> str:
        model = self.conversion.model
        output = self.output
        is_classifier = model.problem_type is not None
        if self.to == "hugging_face":
            if model.tokenizer is None:
                return f"put its vocab.txt into {output}"
            if is_classifier:
                return command_line("export", "--model", output, "--name", "classifier")
            data = ("--train", "train.tsv", "--output", "runs/tuned")
            return command_line("finetune", "--model", output, *data)
        if self.to == "tf1":
            return (
                f"run_classifier.py --init_checkpoint={output}/bert_model.ckpt "
                f"--bert_config_file={output}/bert_config.json --vocab_file={output}/vocab.txt ..."
            )
        kind = "BertTextClassifier" if is_classifier else "BertBackbone"
        return f'keras_nlp.models.{kind}.from_preset("{output}")'


def run(options: Options) -> ConvertResult:
    """Converts a model to or from another library's format, as `bert-tf convert` does.

    Returns:
        What was converted, and the files written.
    """
    with progress("converting", shown=options.shown):
        from bert_tf.checkpoints.other_formats.conversion import convert

        done = convert(
            options.source,
            options.output,
            options.to,
            dtype=options.dtype,
            do_lower_case=options.do_lower_case,
            layers=options.layers,
            shard_bytes=int(options.shard_gigabytes * 1000**3),
            overwrite=options.overwrite,
        )
    return ConvertResult(output=Path(options.output), to=options.to, conversion=done)


COMMAND = Command(name="convert", help=__doc__, options=Options, run=run)
convert = COMMAND.function("convert")
