r"""Show what to write here in place of another library's BERT in TensorFlow.

  bert-tf migrate train.py
  bert-tf migrate project/
  bert-tf migrate --compare old.npz --model models/base

Reads scripts, notebooks, shell scripts, YAML files and Markdown pages, runs nothing and changes
nothing. It knows transformers' TFBert* classes, KerasHub, Model Garden, TF Hub, keras-bert,
bert4keras, the original's scripts and modules, the models of ktrain, sentence-transformers, Simple
Transformers and bert-as-service, and what Keras 2 and TensorFlow 1 had beside them.
The exit code is 2 if a part could not be read, such as Python 2.

--compare compares a model's outputs with the old code's: docs/coming-from.md has the lines that
save them.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import command_line, console, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.migration.scan import Finding, ScanReport, scan
from bert_tf.migration.symbols import LIBRARIES
from bert_tf.options import PathName, option
from bert_tf.startup import import_tensorflow

if TYPE_CHECKING:
    from bert_tf.migration.compare import Comparison


@dataclass(kw_only=True)
class Options(CommandOptions):
    """Options of `bert-tf migrate`."""

    path: PathName | None = option(None, positional=True, path=True)
    """script, notebook, shell script, YAML file, Markdown page, or a folder of them."""
    compare: PathName | None = option(None, path=True)
    """.npz file of ids and outputs that the old code saved."""
    model: PathName | None = option(None, path=True, model=True)
    """model directory to compare with the file."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.path is None) == (self.compare is None):
            raise InputError(
                "give exactly one of a script or folder to read and --compare FILE with --model"
            )
        if (self.compare is None) != (self.model is None):
            raise InputError("--compare and --model belong together: give both of them")


@dataclass(kw_only=True, repr=False, eq=False)
class MigrateResult(Result):
    """The outcome of `migrate`.

    Attributes:
        scanned: the symbols of other libraries in the files, and what could not be read.
        comparison: how far the model's outputs are from those that the old code saved.
    """

    scanned: ScanReport | None = None
    comparison: "Comparison | None" = None

    def lines(self) -> list[str]:
        if self.scanned is not None:
            lines = [line for finding in self.scanned.findings for line in _lines(finding)]
            lines += [f"Not read: {sentence}" for sentence in self.scanned.unread]
            return [*lines, _summary(self.scanned)]
        assert self.comparison is not None
        texts = self.comparison.texts
        other_ids = self.comparison.other_ids
        lines = [f"Other ids: {sentence}" for sentence in other_ids]
        if texts is not None:
            lines.append(f"{texts - len(other_ids)} of {texts} texts: same ids")
        return lines + [
            f"{output.name}: largest difference {output.largest:.1e} of values up to "
            f"{output.scale:.3g}"
            for output in self.comparison.outputs
        ]


def run(options: Options) -> MigrateResult:
    """Finds what to write in place of another library's BERT, as `bert-tf migrate` does.

    Returns:
        The symbols found, or the comparison of a model with the old code's outputs.
    """
    if options.path is not None:
        return MigrateResult(scanned=scan(Path(options.path)))
    import_tensorflow()
    with progress("comparing", shown=options.shown):
        from bert_tf.migration.compare import compare

        comparison = compare(Path(str(options.compare)), Path(str(options.model)))
    return MigrateResult(comparison=comparison)


def show(result: MigrateResult, options: Options) -> None:
    if result.scanned is not None:
        out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
        out.print(str(result))
        if parts := len(result.scanned.unread):
            raise InputError(
                f"{parts} part(s) of {options.path} could not be read and are not in the numbers: "
                "save them as Python 3 (2to3 rewrites Python 2), and run it again"
            )
        return
    assert result.comparison is not None
    console.print(str(result))
    model = options.model
    file = options.compare
    if not result.comparison.is_equal:
        raise InputError(f"{model} computes something else than {file}: {result.comparison.cause}.")
    following = command_line(
        "finetune", "--model", model, "--train", "train.tsv", "--output", "runs/tuned"
    )
    console.print(
        f"{model} computes what the old code computed, on {result.comparison.rows} row(s).\n"
        f"Next: {following}"
    )


# TensorFlow is imported for --compare alone.
COMMAND = Command(
    name="migrate", help=__doc__, options=Options, run=run, show=show, needs_tensorflow=False
)
migrate = COMMAND.function("migrate")


def _lines(finding: Finding) -> list[str]:
    first, *others = finding.locations
    file = re.sub(r"(:cell \d+)?:\d+$", "", first)
    more = ", ".join(location.removeprefix(f"{file}:") for location in others)
    library = LIBRARIES[finding.library]
    row = finding.row
    head = f"{first}: {finding.name}"
    if row is None:
        head += f" ({library}): not known to bert-tf"
        advice = "see the page for its library: docs/coming-from.md"
    else:
        head += f" ({library}): {row.what}"
        none = f"no equivalent, because {row.because}"
        advice = f"instead: {row.instead}" if row.instead else none
    return [head, *([f"    also at {more}"] if more else []), f"    {advice}"]


def _summary(report: ScanReport) -> str:
    total = len(report.findings)
    where = f"{report.files} file(s)"
    if report.unread:
        where += f", of which {len(report.unread)} part(s) were not read"
    if not total:
        what = "What was read has nothing" if report.unread else "Nothing"
        return f"{what} of another library's BERT: {where}."
    without = sum(
        finding.row is not None and not finding.row.instead for finding in report.findings
    )
    return (
        f"{total} symbol(s) in {where}: {report.known - without} have an "
        f"equivalent, {without} have none, {total - report.known} are not known "
        f"({report.known / total:.0%} known). Nothing was changed."
    )
