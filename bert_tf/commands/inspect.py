"""Show instances and statistics of shards, and verify their checksums.

  bert-tf inspect --shards shards/
  bert-tf inspect --shards shards/ --split held_out --examples 20 --seed 2 --no_verify

Prints instances as in the paper, in word pieces (##s continues a word). Masked words are coloured,
and listed below with the original piece: [MASK]->the, apple->store (random), gallon->gallon (kept).
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.options import PathName, option
from bert_tf.pipelines.shards.manifest import SPLITS, verify

if TYPE_CHECKING:
    from bert_tf.pipelines.shards.folder import ShardFolder
    from bert_tf.tokenization import BertTokenizer

_STYLES = {"masked": "bold yellow", "random": "bold red", "kept": "bold green"}


@dataclass(kw_only=True)
class Options(CommandOptions):
    """Options of `bert-tf inspect`."""

    shards: PathName = option(path=True)
    """folder that `bert-tf shards` wrote, or of TFRecord files of the original script."""
    split: Literal["train", "held_out"] = "train"
    """split to print instances from."""
    examples: int = option(5, at_least=0, at_most=100_000)
    """number of instances to print."""
    seed: int = option(0, at_least=0, below=2**31)
    """random seed; prints the instances that training with this seed sees first."""
    tokenizer: PathName | None = option(None, path=True)
    """tokenizer folder or vocab.txt that the shards were made with; only needed for shards of the
    original script."""
    verify: bool = True
    """read all shards and compare their checksums."""


class DisplayedToken(NamedTuple):
    shown: str  # the piece that the model sees
    hidden: str | None  # the piece to predict there


class DisplayedInstance(NamedTuple):
    tokens: list[DisplayedToken]  # without padding
    label: str | None  # IsNext or NotNext (paper, section 3.1); None if instances are not pairs


def displayed_instances(
    shards: "ShardFolder", tokenizer: "BertTokenizer", count: int, seed: int
) -> list[DisplayedInstance]:
    """Decodes the `count` instances that training with `seed` sees first, with their masks."""
    import numpy as np

    from bert_tf.pipelines.shards.folder import shard_errors
    from bert_tf.pipelines.shards.pretraining_batches import check_token_ids, pretraining_batches

    batches = pretraining_batches(shards, count, seed=seed, repeat=False, tokenizer=tokenizer)
    assert batches is not None  # the split exists
    with shard_errors(shards):
        inputs, labels, weights = next(batches.as_numpy_iterator())
    check_token_ids(shards, tokenizer, inputs, labels)
    instances = []
    for row, token_ids in enumerate(inputs["token_ids"]):
        is_prediction = weights["mlm_logits"][row] > 0
        positions = inputs["mask_positions"][row][is_prediction]
        pieces = map(tokenizer.id_to_token, labels["mlm_logits"][row][is_prediction])
        hidden = dict(zip(positions, pieces, strict=True))
        # Tokens have the number of their instance, from 1 on: there is one, or a row of several.
        for number, is_random_next in enumerate(np.atleast_1d(labels["nsp_logits"][row]), start=1):
            tokens = [
                DisplayedToken(tokenizer.id_to_token(token_ids[position]), hidden.get(position))
                for position in np.flatnonzero(inputs["padding_mask"][row] == number)
            ]
            label = ("IsNext", "NotNext")[is_random_next] if shards.has_next_sentences else None
            if tokens:
                instances.append(DisplayedInstance(tokens, label))
    return instances[:count]


@dataclass(kw_only=True, repr=False, eq=False)
class InspectResult(Result):
    """The outcome of `inspect`.

    Attributes:
        shards: the folder, with its manifest.
        instances: the examples, with their masks.
        verified: outputs compared; empty without `verify`.
    """

    shards: "ShardFolder"
    instances: list[DisplayedInstance] = field(default_factory=list)
    verified: str = ""

    def lines(self) -> list[str]:
        return [self.verified] if self.verified else []


def run(options: Options) -> InspectResult:
    """Reads instances and statistics of shards, and verifies them, as `bert-tf inspect` does.

    Returns:
        The instances, and the shards with their manifest.
    """
    from bert_tf.pipelines.shards.folder import open_shards, tokenizer_of_shards

    shards = open_shards(options.shards, options.split)
    if shards is None:
        raise InputError(f"{options.shards}: has no {options.split} shards: choose another --split")
    result = InspectResult(shards=shards)
    if options.verify:
        result.verified = _verify(shards, options.shown)
    if options.examples:
        with progress("reading instances", shown=options.shown):
            tokenizer = tokenizer_of_shards(options.shards, options.tokenizer)
            result.instances = displayed_instances(
                shards, tokenizer, options.examples, options.seed
            )
    return result


def show(result: InspectResult, options: Options) -> None:
    out = Console(highlight=False)
    for number, instance in enumerate(result.instances, start=1):
        out.print(f"Example {number}: {len(instance.tokens)} tokens", style="bold")
        out.print(_paragraph(instance), soft_wrap=not out.is_terminal)
    for table in _tables(result.shards):
        out.print(table, "")  # and an empty line
    if result.verified:
        out.print(result.verified, soft_wrap=True)


COMMAND = Command(name="inspect", help=__doc__, options=Options, run=run, show=show)
inspect = COMMAND.function("inspect")


def _verify(shards: "ShardFolder", shown: bool) -> str:
    """Reads every shard of all splits; returns a line, or raises InputError for a damaged one."""
    import tensorflow as tf

    from bert_tf.pipelines.shards.folder import shard_errors

    if shards.manifest.is_foreign:  # compare the checksums of the records
        with progress("reading records", total=shards.instances, shown=shown) as bar:
            number = 0
            with shard_errors(shards):
                for records in tf.data.TFRecordDataset(shards.files).batch(1024):
                    bar.update(number := number + len(records))
        return f"All {number} records are readable."
    total = sum(map(len, shards.manifest.shards.values()))
    with progress("comparing checksums", total=total, shown=shown) as bar:
        verify(shards.directory, bar.update)
    return f"All {total} shards match their checksums."


def _paragraph(instance: DisplayedInstance) -> Text:
    shown = []
    hidden = []
    for token in instance.tokens:
        if token.hidden is None:
            special = token.shown in ("[CLS]", "[SEP]")
            shown.append(Text(token.shown, style="dim" if special else ""))
            continue
        kind = {token.hidden: "kept", "[MASK]": "masked"}.get(token.shown, "random")
        shown.append(Text(token.shown, style=_STYLES[kind]))
        hidden.append(Text(f"{token.shown}->{token.hidden}", style=_STYLES[kind]))
        if kind != "masked":
            hidden[-1].append(f" ({kind})", style="default")
    label = f"\nLabel = {instance.label}" if instance.label else ""
    words = Text(", ").join(hidden)
    return Text.assemble("Input = ", Text(" ").join(shown), label, "\nHidden = ", words, "\n")


def _tables(shards: "ShardFolder") -> list[Table]:
    manifest = shards.manifest
    if manifest.is_foreign:
        facts = {
            "shards": len(shards.files),
            "bytes": sum(Path(file).stat().st_size for file in shards.files),
            "instances": shards.instances,
            "max_seq_length": shards.options.max_seq_length,
            "max_predictions_per_seq": shards.options.max_predictions_per_seq,
        }
        return [_table("Shards without a manifest", {"": facts})]
    settings = asdict(manifest.data_options) | {
        "vocabulary_size": manifest.vocabulary["size"],
        "vocabulary_hash": manifest.vocabulary["hash"][:12],
        **manifest.vocabulary["settings"],
        "bert_tf_version": manifest.bert_tf_version,
    }
    text = {
        "files": sum(source.get("files", 1) for source in manifest.corpus),
        "bytes": sum(source["bytes"] for source in manifest.corpus),
        "documents": manifest.documents,
        "sentences": manifest.sentences,
        **manifest.irregularities,
    }
    splits = {}
    for split in SPLITS:
        if written := manifest.shards.get(split):
            size = {"shards": len(written), "bytes": sum(shard.bytes for shard in written)}
            splits[split] = size | manifest.statistics[split]
    shown = {name: str(value) for name, value in settings.items()}
    tables = {"Settings": {"": shown}, "Text": {"": text}, "Instances": splits}
    return [_table(title, columns) for title, columns in tables.items()]


def _table(title: str, columns: dict[str, dict[str, Any]]) -> Table:
    table = Table("", *columns, title=title, title_justify="left", show_header=any(columns))
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        cells = [_formatted(column.get(name)) for column in columns.values()]
        table.add_row(name.replace("_", " "), *cells)
    return table


def _formatted(value: Any) -> str:
    """Shares become percentages, percentiles a list; other numbers get separators."""
    if isinstance(value, dict):
        return ", ".join(f"{name}%: {_formatted(at)}" for name, at in value.items())
    if isinstance(value, float):
        return f"{value:.1%}" if value <= 1 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else str(value or "")
