r"""Show what to write here in place of another library's BERT in TensorFlow.

  bert-tf migrate train.py
  bert-tf migrate project/
  bert-tf migrate --compare old.npz --model models/base

Reads scripts, notebooks, shell scripts, YAML files and Markdown pages, runs nothing and changes
nothing. It knows transformers' TFBert* classes, KerasHub, Model Garden, TF Hub, keras-bert,
bert4keras, the original's scripts and modules, and what Keras 2 and TensorFlow 1 had beside them.
The exit code is 2 if a part could not be read, such as Python 2.

--compare compares a model's outputs with those of the old code: docs/coming-from.md has the lines
that save them.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from bert_tf.api.progress import console, progress, typed
from bert_tf.errors import InputError
from bert_tf.migration.scan import FoundSymbol, ScanReport, scan
from bert_tf.migration.symbols import LIBRARIES
from bert_tf.options import CheckedOptions, option
from bert_tf.startup import import_tensorflow

needs_tensorflow = False  # but for --compare


@dataclass(kw_only=True)
class Options(CheckedOptions):
    """Options of `bert-tf migrate`."""

    path: str | None = option(None, positional=True, path=True)
    """script, notebook, shell script, YAML file, Markdown page, or a folder of them."""
    compare: str | None = option(None, path=True)
    """.npz file of ids and outputs that the old code saved."""
    model: str | None = option(None, path=True, model=True)
    """model directory to compare with the file."""


def prepare(options: Options) -> None:
    if (options.path is None) == (options.compare is None):
        raise InputError("give a script or folder to read, or --compare FILE with --model")
    if (options.compare is None) != (options.model is None):
        raise InputError("--compare and --model belong together: give both of them")


def run(options: Options) -> None:
    if options.compare is not None and options.model is not None:
        import_tensorflow()
        _compare(options.compare, options.model)
        return
    assert options.path is not None
    out = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    report = scan(Path(options.path))
    for finding in report.findings:
        out.print("\n".join(_lines(finding)))
    for sentence in report.unread:
        out.print(f"Not read: {sentence}")
    out.print(_summary(report))
    if parts := len(report.unread):
        raise InputError(
            f"{parts} part(s) of {options.path} could not be read and are not in the numbers: save "
            "them as Python 3 (2to3 rewrites Python 2), and run it again"
        )


def _compare(file: str, model: str) -> None:
    from bert_tf.migration.compare import compare

    with progress("comparing"):
        result = compare(Path(file), Path(model))
    for sentence in result.other_ids:
        console.print(f"Other ids: {sentence}")
    if result.texts is not None:
        console.print(f"{result.texts - len(result.other_ids)} of {result.texts} texts: same ids")
    for each in result.outputs:
        console.print(
            f"{each.name}: largest difference {each.largest:.1e} of values up to {each.scale:.3g}"
        )
    if not result.is_equal:
        raise InputError(f"{model} computes something else than {file}: {result.cause}.")
    console.print(
        f"{model} computes what the old code computed, on {result.rows} row(s).\n"
        f"Next: {typed('bert-tf')} finetune --model {model} --train train.tsv --output runs/tuned"
    )


def _lines(finding: FoundSymbol) -> list[str]:
    first, *others = finding.places
    file = re.sub(r"(:cell \d+)?:\d+$", "", first)
    more = ", ".join(place.removeprefix(f"{file}:") for place in others)
    library, row = LIBRARIES[finding.library], finding.row
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
    without = sum(each.row is not None and not each.row.instead for each in report.findings)
    return (
        f"{total} symbol(s) in {where}: {report.known - without} have an "
        f"equivalent, {without} have none, {total - report.known} are not known "
        f"({report.known / total:.0%} known). Nothing was changed."
    )
