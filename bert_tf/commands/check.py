r"""Check labelled text before a model learns from it.

  bert-tf check --train train.tsv --validation dev.tsv --test test.tsv --output checked --clean
  bert-tf check --task mrpc --data glue/MRPC
  bert-tf check --train reviews.csv --text_column review --label_column stars \
    --model models/base --max_length 64

Finds near-duplicates within and between the splits, labels that are probably wrong, empty and
damaged texts, texts in another script than most, texts that the model would cut, and labels that
are spelt in two ways. --output has a report with samples and a table of every kind of finding;
--clean writes a copy without them (docs/checking-data.md).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.commands.function import CommandOptions, function
from bert_tf.commands.progress import ProgressBar, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.files.atomic import write_text, write_tsv
from bert_tf.files.owners import CHECK, owned
from bert_tf.options import PathName, option
from bert_tf.tasks.task_options import FileOptions, TaskOptions

if TYPE_CHECKING:
    from bert_tf.pipelines.examples.table import Examples
    from bert_tf.tasks.task import Task

_SPLITS = ("train", "validation", "test")
_SHOWN = 10  # findings of a kind in the report
_LONGEST = 160  # characters of a text there
_TEXTS_AT_ONCE = 32  # whose vectors are made
_TITLES = {  # of kinds of findings, in the order of the report
    "empty": "Empty texts",
    "damaged": "Damaged characters, and texts that were read in a wrong encoding",
    "script": "Texts in another script than most",
    "cut": "Texts that the model would cut",
    "spelling": "Labels that are spelt in two ways",
    "conflict": "Equal texts with different labels",
    "leak": "Training examples that are, nearly, among the examples of another split",
    "duplicate": "Near-duplicates within a split",
    "doubt": "Labels that are probably wrong",
}


@dataclass(kw_only=True)
class Options(CommandOptions, TaskOptions, FileOptions):
    """Options of `bert-tf check`."""

    data: PathName | None = option(None, path=True)
    """folder of a data set's published files, or its name in TensorFlow Datasets, or one file."""
    train: PathName | None = option(None, path=True)
    """training examples, in place of --data: a .tsv, .csv or .jsonl file."""
    validation: PathName | None = option(None, path=True)
    """validation examples."""
    test: PathName | None = option(None, path=True)
    """test examples, with or without labels."""
    label_column: str | None = None
    """column of the label, by name or number."""
    model: PathName | None = option(None, path=True, model=True)
    """model directory whose tokenizer tells which texts are cut at --max_length."""
    by_vectors: bool = False
    """doubt labels by the model's vectors of the texts, too: finds more wrong labels, and takes as
    long as predictions. The model must not have been trained on these labels."""
    similarity: float = option(0.6, above=0, at_most=1)
    """minimum share of five-character runs that near-duplicates have in common."""
    wrong_share: float = option(0.05, above=0, below=0.5)
    """share of all labels assumed to be wrong; a larger share doubts more labels."""
    output: PathName | None = option(None, writes="folder")
    """folder for report.md, a .tsv of each kind of finding, and the cleaned copy."""
    clean: bool = False
    """write OUTPUT/cleaned, the files' own rows: without empty texts, and without later
    near-duplicates and training examples of another split that have the same label; each label
    spelt one way. Doubted labels stay: decide them yourself."""
    seed: int = option(1, at_least=0, at_most=2**32 - 1)
    """random seed of MinHash and of the cross-validation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (self.train is None):
            raise InputError("give exactly one of --data and --train")
        if self.clean and not self.output:
            raise InputError("--clean writes a copy: give --output a folder for it")
        if self.by_vectors and not self.model:
            raise InputError("--by_vectors needs a model: name its directory with --model")


@dataclass(frozen=True)
class Finding:
    kind: str  # a key of `_TITLES`
    split: str
    index: int  # of the example in its split
    place: str  # file and line
    what: str  # what is wrong, in words
    text: str
    is_dropped: bool = False  # from the cleaned copy
    label: str | None = None  # that the cleaned copy has

    def line(self, characters: int) -> str:
        return f"{self.place}: {self.what}: {' '.join(self.text.split())[:characters]}"


@dataclass(kw_only=True, repr=False, eq=False)
class CheckResult(Result):
    """The outcome of `check`.

    Attributes:
        examples: split -> number of its examples.
        findings: kind of findings -> all of them, for kinds that there are.
        output: folder of the report, if it was written.
        kept: split -> number of its examples in OUTPUT/cleaned, if that was written.
    """

    examples: dict[str, int]
    findings: dict[str, list[Finding]]
    output: Path | None = None
    kept: dict[str, int] | None = None

    def summary(self) -> list[str]:
        counts = [f"{_TITLES[kind]}: {len(rows):,}" for kind, rows in self.findings.items()]
        return [f"checked {_counts(self.examples)} examples", *(counts or ["nothing found"])]

    def lines(self) -> list[str]:
        lines = self.summary()
        if self.output is not None:
            lines.append(f"Report: {self.output / 'report.md'}")
            if self.kept is not None:
                copy = self.output / "cleaned"
                lines.append(f"Cleaned copy, {_counts(self.kept)} examples: {copy}")
        for findings in self.findings.values():
            lines += [f"  {finding.line(80)}" for finding in findings[:3]]
        return lines


def run(options: Options) -> CheckResult:
    """Checks labelled text before a model learns from it, as `bert-tf check` does.

    Returns:
        The findings, by their kinds.
    """
    output = Path(options.output) if options.output else None
    with owned(output, CHECK), progress("reading", shown=options.shown) as bar:
        from bert_tf.tasks.task_table import find_task, with_options

        task = with_options(find_task(options.task or "classification"), vars(options))
        splits = dict(_read(task, options))
        bar.update(0, note="and comparing")
        findings = list(_findings(task, splits, options, bar))
        # The surest doubts come first, in the order in which they were found.
        findings.sort(key=lambda x: (_SPLITS.index(x.split), 0 if x.kind == "doubt" else x.index))
        by_kind = {kind: [x for x in findings if x.kind == kind] for kind in _TITLES}
        result = CheckResult(
            examples={split: len(examples) for split, examples in splits.items()},
            findings={kind: listed for kind, listed in by_kind.items() if listed},
            output=output,
        )
        if output:
            _write_report(result, output)
            if options.clean:
                result.kept = _write_cleaned(splits, findings, output / "cleaned")
    return result


check = function("check", Options, run)


def _counts(examples: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in examples.items())


def _read(task: "Task", options: Options) -> "Iterator[tuple[str, Examples]]":
    paths = {split: getattr(options, split) for split in _SPLITS}
    if options.data is not None:
        published = [split for split in _SPLITS if task.has(options.data, split)]
        paths |= dict.fromkeys(published or ["train"], options.data)
    for split, path in paths.items():
        if path is not None:
            try:
                yield split, task.read(path, split)
            except InputError:
                if split != "test":
                    raise
                yield split, task.read(path, split, labelled=False)  # published without labels


def _findings(
    task: "Task", splits: "Mapping[str, Examples]", options: Options, bar: ProgressBar
) -> Iterator[Finding]:
    from bert_tf.pipelines.examples import data_faults
    from bert_tf.tasks.kinds.classification import Classification

    is_class = isinstance(task.kind, Classification)
    if options.by_vectors and not is_class:
        raise InputError("--by_vectors is for texts with one label each: leave it out")
    rows = [(split, i) for split, examples in splits.items() for i in range(len(examples))]
    parts = [texts for examples in splits.values() for texts in _texts(task, examples)]
    texts = [" ".join(part).strip() for part in parts]
    labels = [label for examples in splits.values() for label in _labels(examples)]

    def location(number: int) -> str:
        split, index = rows[number]
        return splits[split].location(index)

    def finding(number: int, kind: str, what: str, **more: Any) -> Finding:
        return Finding(kind, *rows[number], location(number), what, texts[number], **more)

    for number, text in enumerate(texts):
        if fault := data_faults.text_fault(text):
            is_empty = fault == "empty"
            yield finding(number, fault if is_empty else "damaged", fault, is_dropped=is_empty)
    main, others = data_faults.other_scripts(texts)
    for number, script in others.items():
        yield finding(number, "script", f"{script.lower()}, where most are {str(main).lower()}")
    if options.model is not None:
        for number, length in enumerate(_lengths(task, splits.values(), options.model)):
            if length > task.max_length:
                yield finding(number, "cut", f"{length:,} tokens, {task.max_length} are read")
    names = [label for label in labels if isinstance(label, str)]
    spelling = data_faults.spelt_twice(names) if is_class else {}
    for number, label in enumerate(labels):
        if label in spelling:
            correct = spelling[label]
            yield finding(number, "spelling", f"{label!r} for {correct!r}", label=correct)
    labels = [spelling.get(label, label) for label in labels]
    for group in data_faults.near_duplicates(parts, options.similarity, options.seed):
        labels_of = defaultdict(set)
        for number in group.members:
            labels_of[parts[number]].add(labels[number])
        for number in group.members:
            different = {str(label) for label in labels_of[parts[number]] if label is not None}
            if len(different) > 1:
                yield finding(number, "conflict", f"has the labels {', '.join(sorted(different))}")
        elsewhere = [n for n in group.members if rows[n][0] != "train"]
        for number, similarity in zip(group.members, group.similarities, strict=True):
            is_of_train = rows[number][0] == "train"
            before = [n for n in group.members if n < number and rows[n][0] == rows[number][0]]
            is_measured = before[:1] == [group.members[0]]  # similarities are to the first
            share = f"{similarity:.0%} of" if is_measured else "like"
            for kind, originals in (("leak", elsewhere * is_of_train), ("duplicate", before)):
                if originals:
                    # Another label than theirs may be what tells the texts apart.
                    is_dropped = any(labels[n] in (None, labels[number]) for n in originals)
                    what = f"{share if kind == 'duplicate' else 'like'} {location(originals[0])}"
                    what += f": {texts[originals[0]][:_LONGEST]}" if kind == "leak" else ""
                    what += "" if is_dropped else " (another label)"
                    yield finding(number, kind, what, is_dropped=is_dropped)
    if is_class and "label" in splits.get("train", next(iter(splits.values()))).columns:
        numbers = [n for n, x in enumerate(labels) if isinstance(x, str) and texts[n].strip()]
        labelled = [texts[n] for n in numbers]
        vectors = _vectors(task, labelled, options.model, bar) if options.by_vectors else None
        doubts = data_faults.doubted_labels(
            labelled,
            [labels[n] for n in numbers],
            vectors,
            wrong_share=options.wrong_share,
            seed=options.seed,
        )
        for doubt in doubts:
            what = f"{doubt.label!r}, probably {doubt.proposed!r} ({doubt.probability:.2f})"
            yield finding(numbers[doubt.index], "doubt", what)


def _texts(task: "Task", examples: "Examples") -> list[tuple[str, ...]]:
    """The texts of each example; choices and words as one string."""
    columns = [
        ["\n".join(x) if isinstance(x, list) else x.strip() for x in examples.columns[name]]
        for name in task.inputs
    ]
    return list(zip(*columns, strict=True))


def _labels(examples: "Examples") -> list[Any]:
    """The label of each example, or the answers to a question; None if it has none."""
    columns = examples.columns
    if "answers" in columns:
        return [tuple(sorted(texts)) for texts in columns["answers"]]
    return columns.get("label") or [None] * len(examples)


def _lengths(task: "Task", splits: "Iterable[Examples]", model: str) -> Iterator[int]:
    """Tokens of each example, before it is truncated."""
    from bert_tf.tokenization.tokenizer import BertTokenizer

    tokenizer = BertTokenizer.from_directory(model)
    for examples in splits:
        columns = {name: examples.columns[name] for name in task.inputs}
        yield from task.kind.lengths(columns, tokenizer).tolist()


def _vectors(task: "Task", texts: list[str], model: str | None, bar: ProgressBar) -> Any:
    """The mean over the tokens of each text, float32 [N, H]."""
    from bert_tf.models.opening import load_answerer
    from bert_tf.serving.predictor import answer

    def report(done: int) -> None:
        bar.update(done, note=f"and comparing: vectors of {done:,} of {len(texts):,} texts")

    settings = {"task": "vectors", "max_length": task.max_length}
    signature = load_answerer(str(model), settings).function()
    return answer(signature, {"text": texts}, _TEXTS_AT_ONCE, answered=report)["mean"]


def _write_cleaned(
    splits: "Mapping[str, Examples]", findings: Iterable[Finding], folder: Path
) -> dict[str, int]:
    """Writes the file of each split without what is dropped; returns the numbers of examples."""
    from bert_tf.pipelines.examples.copies import copy_without, ending

    dropped: dict[str, set[int]] = {split: set() for split in splits}
    labels: dict[str, dict[int, str]] = {split: {} for split in splits}
    for finding in findings:
        if finding.is_dropped:
            dropped[finding.split].add(finding.index)
        if finding.label is not None:
            labels[finding.split][finding.index] = finding.label
    folder.mkdir(parents=True, exist_ok=True)
    for split, examples in splits.items():
        copy = copy_without(examples, dropped[split], labels[split])
        write_text(folder / f"{split}{ending(examples)}", copy)
    return {split: len(examples) - len(dropped[split]) for split, examples in splits.items()}


def _write_report(result: CheckResult, folder: Path) -> None:
    lines = ["# Check of the data", *result.summary()]
    for kind, findings in result.findings.items():
        rows = [[x.split, x.place, x.what, x.text] for x in findings]
        write_tsv(folder / f"{kind}.tsv", [["split", "place", "what", "text"], *rows])
        lines.append(f"## {_TITLES[kind]}: {len(findings):,}")
        lines.append(f"All: {kind}.tsv" if len(findings) > _SHOWN else f"Also in {kind}.tsv")
        lines += [f"- {finding.line(_LONGEST)}" for finding in findings[:_SHOWN]]
    write_text(folder / "report.md", "\n\n".join(lines) + "\n")
