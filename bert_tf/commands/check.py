r"""Check labelled text before a model learns from it.

  bert-tf check --train train.tsv --validation dev.tsv --test test.tsv --output checked
  bert-tf check --task mrpc --data glue/MRPC
  bert-tf check --train reviews.csv --text_column review --label_column stars \
    --model models/base --max_length 64

Finds near-duplicates within and between the splits, labels that are probably wrong, empty and
damaged texts, texts in another script than most, texts that the model would truncate, and labels
spelt in two ways. --output has a report with samples, and a table of each kind of finding with
its file and line.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.commands.command import Command, CommandOptions
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
    "bad": "Rows that cannot be used, and are not checked further",
    "rare": "Rare labels, which a model may never predict",
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
    """model directory whose tokenizer counts tokens, to find the texts that --max_length would
    truncate."""
    by_vectors: bool = False
    """also use the model's vectors of the texts to find label errors: finds more of them, and takes
    as long as predicting all texts. The model must not have been trained on these labels."""
    similarity: float = option(0.6, above=0, at_most=1)
    """minimum share of five-character sequences that two near-duplicates have in common."""
    wrong_share: float = option(0.05, above=0, below=0.5)
    """assumed share of wrong labels; a larger share reports more of them."""
    output: PathName | None = option(None, writes="folder")
    """folder for report.md and a .tsv of each kind of finding."""
    seed: int = option(1, at_least=0, at_most=2**32 - 1)
    """random seed for MinHash and cross-validation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (self.train is None):
            raise InputError("give exactly one of --data and --train")
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

    def line(self, characters: int) -> str:
        text = " ".join(self.text.split())[:characters]
        return f"{self.place}: {self.what}" + f": {text}" * bool(text)


@dataclass(kw_only=True, repr=False, eq=False)
class CheckResult(Result):
    """The outcome of `check`.

    Attributes:
        examples: split -> number of its examples.
        labels: label -> number of training examples, or of words, that have it.
        findings: kind of findings -> all of them, for kinds that there are.
        output: folder of the report, if it was written.
    """

    examples: dict[str, int]
    labels: dict[str, int]
    findings: dict[str, list[Finding]]
    output: Path | None = None

    def summary(self) -> list[str]:
        from bert_tf.tasks.remarks import listed_counts

        lines = [f"checked {_counts(self.examples)} examples"]
        if self.labels:
            lines.append(f"labels: {listed_counts([*self.labels], [*self.labels.values()])}")
        return lines if self.findings else [*lines, "nothing found"]

    def lines(self) -> list[str]:
        lines = self.summary()
        is_whole = True
        for kind, findings in self.findings.items():
            shown = findings[: _SHOWN if kind == "bad" else 3]
            is_whole &= len(shown) == len(findings)
            lines.append(f"{_TITLES[kind]}: {len(findings):,}")
            lines += [f"  {finding.line(80)}" for finding in shown]
        if self.output is not None:
            lines.append(f"Report: {self.output / 'report.md'}")
        elif not is_whole:
            lines.append("These are the first findings of each kind; --output FOLDER writes all")
        return lines


def run(options: Options) -> CheckResult:
    """Checks labelled text before a model learns from it, as `bert-tf check` does.

    Returns:
        The findings, by their kinds.
    """
    output = Path(options.output) if options.output else None
    with owned(output, CHECK), progress("reading", shown=options.shown) as bar:
        from bert_tf.tasks.model_task import task_to_read

        # Without TensorFlow, if the task is in the table.
        reading = task_to_read(None, vars(options))
        splits, faults = _read(reading or _task(options), options)
        bar.update(0, note="and comparing")
        task = _task(options)
        labels = _label_counts(task, splits)
        findings = [_bad(split, fault) for split, listed in faults.items() for fault in listed]
        findings += _rare(task, labels)
        findings += _Checked(task, splits, options).findings(bar)
        # The surest doubts come first, in the order in which they were found.
        findings.sort(key=lambda x: (_SPLITS.index(x.split), 0 if x.kind == "doubt" else x.index))
        by_kind = {kind: [x for x in findings if x.kind == kind] for kind in _TITLES}
        result = CheckResult(
            examples={split: len(examples) for split, examples in splits.items()},
            labels=labels,
            findings={kind: listed for kind, listed in by_kind.items() if listed},
            output=output,
            notices=bar.notices,
        )
        if output:
            _write_report(result, output)
    return result


COMMAND = Command(name="check", help=__doc__, options=Options, run=run)
check = COMMAND.function("check")


def _counts(examples: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in examples.items())


def _task(options: Options) -> "Task":
    from bert_tf.tasks.task_table import find_task, with_options

    return with_options(find_task(options.task or "classification"), vars(options))


def _read(
    task: "Task", options: Options
) -> "tuple[dict[str, Examples], dict[str, list[InputError]]]":
    """The examples of each split, and the faults of the rows that are left out."""
    splits: dict[str, Examples] = {}
    faults: dict[str, list[InputError]] = {}
    paths = {split: getattr(options, split) for split in _SPLITS}
    if options.data is not None:
        published = [split for split in _SPLITS if task.has(options.data, split)]
        paths |= dict.fromkeys(published or ["train"], options.data)
    for split, path in paths.items():
        if path is not None:
            faults[split] = []
            try:
                splits[split] = _labelled(task, path, split, faults[split])
            except InputError:
                if split != "test":
                    raise
                faults[split] = []  # published without labels
                splits[split] = task.read(path, split, labelled=False, faults=faults[split])
    return splits, faults


def _labelled(task: "Task", path: str, split: str, faults: list[InputError]) -> "Examples":
    from bert_tf.pipelines.examples.bad_rows import refuse

    examples = task.read(path, split, faults=faults)
    bad: dict[int, InputError] = {}
    if "label" in examples.columns:
        with suppress(InputError):  # such as one label alone, which no model learns
            bad = task.kind.label_faults(examples, task.kind.label_names(task, examples))
    if len(bad) == len(examples):
        refuse([*bad.values()])
    faults += bad.values()
    return examples.take([i for i in range(len(examples)) if i not in bad])


def _bad(split: str, fault: InputError) -> Finding:
    place, _, what = str(fault).partition(": ")
    return Finding("bad", split, -1, place, what, "")


def _label_counts(task: "Task", splits: "Mapping[str, Examples]") -> dict[str, int]:
    """How often each label occurs in the training examples; empty for tasks without labels."""
    from bert_tf.tasks.remarks import label_counts

    examples = splits.get("train")
    with suppress(InputError):  # such as one label alone
        if examples is not None and "label" in examples.columns:
            names = task.kind.label_names(task, examples)
            counts = label_counts(task.kind.targets(examples, names), names)
            return dict(zip(names, counts, strict=True))
    return {}


def _rare(task: "Task", labels: Mapping[str, int]) -> Iterator[Finding]:
    """Labels of classes with less than a tenth of the largest one's examples."""
    from bert_tf.tasks.kinds.classification import Classification
    from bert_tf.tasks.kinds.multi_label import MultiLabel

    if isinstance(task.kind, Classification | MultiLabel):
        for label, count in labels.items():
            if 10 * count < max(labels.values()):
                what = f"{count:,} training examples; add some, or give --class_weights balanced"
                yield Finding("rare", "train", -1, f"{label!r}", what, "")


class _Checked:
    """The examples of all splits, one after the other, and what is found in them."""

    def __init__(self, task: "Task", splits: "Mapping[str, Examples]", options: Options) -> None:
        from bert_tf.tasks.kinds.classification import Classification

        self.task = task
        self.splits = splits
        self.options = options
        self.is_class = isinstance(task.kind, Classification)
        if options.by_vectors and not self.is_class:
            raise InputError("--by_vectors is for texts with one label each: leave it out")
        self.rows = [(split, i) for split, examples in splits.items() for i in range(len(examples))]
        self.parts = [x for examples in splits.values() for x in _texts(task, examples)]
        self.texts = [" ".join(part).strip() for part in self.parts]
        self.labels = [label for examples in splits.values() for label in _labels(examples)]

    def location(self, number: int) -> str:
        split, index = self.rows[number]
        return self.splits[split].location(index)

    def finding(self, number: int, kind: str, what: str) -> Finding:
        return Finding(kind, *self.rows[number], self.location(number), what, self.texts[number])

    def findings(self, bar: ProgressBar) -> Iterator[Finding]:
        yield from self._bad_texts()
        yield from self._spellings()
        yield from self._duplicates()
        first = self.splits.get("train", next(iter(self.splits.values())))
        if self.is_class and "label" in first.columns:
            yield from self._doubts(bar)

    def _bad_texts(self) -> Iterator[Finding]:
        """Empty and damaged texts, other scripts, and texts that would be truncated."""
        from bert_tf.pipelines.examples import data_faults

        for number, text in enumerate(self.texts):
            if fault := data_faults.text_fault(text):
                yield self.finding(number, "empty" if fault == "empty" else "damaged", fault)
        main, others = data_faults.other_scripts(self.texts)
        for number, script in others.items():
            what = f"{script.lower()}, where most are {str(main).lower()}"
            yield self.finding(number, "script", what)
        if self.options.model is not None:
            most = self.task.max_length
            lengths = _lengths(self.task, self.splits.values(), self.options.model)
            for number, length in enumerate(lengths):
                if length > most:
                    yield self.finding(number, "cut", f"{length:,} tokens, {most} are read")

    def _spellings(self) -> Iterator[Finding]:
        """Labels that are spelt in two ways; from here on each has one spelling."""
        from bert_tf.pipelines.examples.cells import whole
        from bert_tf.tasks.readers import spelt_twice

        names = [label for label in self.labels if isinstance(label, str)]
        spelling = spelt_twice(names) if self.is_class else {}
        for number, label in enumerate(self.labels):
            if label in spelling:
                yield self.finding(number, "spelling", f"{label!r} for {spelling[label]!r}")
        self.labels = [whole(spelling.get(x, x)) if isinstance(x, str) else x for x in self.labels]

    def _duplicates(self) -> Iterator[Finding]:
        """Equal texts with different labels, and near-duplicates within and between splits."""
        from bert_tf.pipelines.examples import data_faults

        similarity = self.options.similarity
        for group in data_faults.near_duplicates(self.parts, similarity, self.options.seed):
            labels_of = defaultdict(set)
            for number in group.members:
                labels_of[self.parts[number]].add(self.labels[number])
            for number in group.members:
                labels = labels_of[self.parts[number]]
                different = {str(label) for label in labels if label is not None}
                if len(different) > 1:
                    what = f"has the labels {', '.join(sorted(different))}"
                    yield self.finding(number, "conflict", what)
            elsewhere = [n for n in group.members if self.rows[n][0] != "train"]
            for number, share in zip(group.members, group.similarities, strict=True):
                split = self.rows[number][0]
                before = [n for n in group.members if n < number and self.rows[n][0] == split]
                if split == "train" and elsewhere:
                    original = f"like {self.location(elsewhere[0])}"
                    text = self.texts[elsewhere[0]][:_LONGEST]
                    other = self._other_label(number, elsewhere)
                    yield self.finding(number, "leak", f"{original}: {text}{other}")
                if before:
                    is_measured = before[0] == group.members[0]  # similarities are to the first
                    alike = f"{share:.0%} of" if is_measured else "like"
                    what = f"{alike} {self.location(before[0])}{self._other_label(number, before)}"
                    yield self.finding(number, "duplicate", what)

    def _other_label(self, number: int, originals: Iterable[int]) -> str:
        """A remark if all originals have another label, which may be what tells texts apart."""
        label = self.labels[number]
        is_alike = any(self.labels[n] in (None, label) for n in originals)
        return "" if is_alike else " (another label)"

    def _doubts(self, bar: ProgressBar) -> Iterator[Finding]:
        """Labels that a classifier of the other examples finds wrong."""
        from bert_tf.pipelines.examples import data_faults

        options = self.options
        labels = self.labels
        numbers = [n for n, x in enumerate(labels) if isinstance(x, str) and self.texts[n].strip()]
        texts = [self.texts[n] for n in numbers]
        vectors = _vectors(self.task, texts, options.model, bar) if options.by_vectors else None
        for doubt in data_faults.doubted_labels(
            texts,
            [labels[n] for n in numbers],
            vectors,
            wrong_share=options.wrong_share,
            seed=options.seed,
        ):
            what = f"{doubt.label!r}, probably {doubt.proposed!r} ({doubt.probability:.2f})"
            yield self.finding(numbers[doubt.index], "doubt", what)


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
    from bert_tf.serving.predictor import answer
    from bert_tf.text.opening import load_answerer

    def report(done: int) -> None:
        bar.update(done, note=f"and comparing: vectors of {done:,} of {len(texts):,} texts")

    settings = {"task": "vectors", "max_length": task.max_length}
    signature = load_answerer(str(model), settings).function()
    return answer(signature, {"text": texts}, _TEXTS_AT_ONCE, answered=report)["mean"]


def _write_report(result: CheckResult, folder: Path) -> None:
    lines = ["# Check of the data", *result.summary()]
    for kind, findings in result.findings.items():
        rows = [[x.split, x.place, x.what, x.text] for x in findings]
        write_tsv(folder / f"{kind}.tsv", [["split", "place", "what", "text"], *rows])
        lines.append(f"## {_TITLES[kind]}: {len(findings):,}")
        lines.append(f"All: {kind}.tsv" if len(findings) > _SHOWN else f"Also in {kind}.tsv")
        lines += [f"- {finding.line(_LONGEST)}" for finding in findings[:_SHOWN]]
    write_text(folder / "report.md", "\n\n".join(lines) + "\n")
