"""`bert-tf check`: what is wrong with examples, before a model learns from them."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bert_tf.api.progress import progress
from bert_tf.api.result import Result, Table
from bert_tf.atomic import write_text, write_tsv
from bert_tf.errors import InputError
from bert_tf.options import option
from bert_tf.outputs import check_output_folder
from bert_tf.tasks.task_options import FileOptions, TaskOptions

if TYPE_CHECKING:
    from bert_tf.tasks.task import Task
    from pipelines.examples.labelled_text import Examples

_SPLITS = ("train", "validation", "test")
_SHOWN = 10  # findings of a kind in the report
_LONGEST = 160  # characters of a text there
# Kinds of findings, in the order of the report.
_TITLES = {
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
class CheckOptions(TaskOptions, FileOptions):
    """Options of `bert-tf check`."""

    data: str | None = option(None, path=True)
    """folder of a data set's published files, or its name in TensorFlow Datasets, or one file."""
    train: str | None = option(None, path=True)
    """training examples, in place of --data: a .tsv, .csv or .jsonl file."""
    validation: str | None = option(None, path=True)
    """validation examples."""
    test: str | None = option(None, path=True)
    """test examples, with or without labels."""
    label_column: str | None = None
    """column of the label, by name or number."""
    model: str | None = option(None, path=True, model=True)
    """model directory whose tokenizer tells which texts are cut at --max_length."""
    similarity: float = option(0.6, above=0, at_most=1)
    """minimum share of five-character runs that near-duplicates have in common."""
    wrong_share: float = option(0.05, above=0, below=0.5)
    """share of all labels assumed to be wrong; a larger share doubts more labels."""
    output: str | None = option(None, writes="folder")
    """folder for report.md, a .tsv of each kind of finding, and the cleaned copy."""
    clean: bool = False
    """write OUTPUT/cleaned: without empty texts, later near-duplicates and training examples of
    another split, each label spelt one way. Doubted labels stay: decide them yourself."""
    seed: int = option(1, at_least=0, at_most=2**32 - 1)
    """random seed of MinHash and of the cross-validation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (self.train is None):
            raise InputError("give exactly one of --data and --train")
        if self.clean and not self.output:
            raise InputError("--clean writes a copy: give --output a folder for it")


@dataclass(frozen=True)
class Finding:
    """Something wrong with an example."""

    kind: str  # a key of `_TITLES`
    split: str
    index: int  # of the example in its split
    place: str  # file and line
    what: str  # what is wrong, in words
    text: str


@dataclass(kw_only=True, repr=False, eq=False)
class CheckResult(Result):
    """The outcome of `check`.

    Attributes:
        examples: split -> number of examples.
        findings: the faults, by kind and place.
        cleaned: split -> number of examples in the cleaned copy, if it was written.
        output: folder of the report, if it was written.
    """

    examples: dict[str, int]
    findings: list[Finding]
    cleaned: dict[str, int] = field(default_factory=dict)
    output: Path | None = None

    def counts(self) -> dict[str, int]:
        """Kind of finding -> number, none for kinds without."""
        found = Counter(finding.kind for finding in self.findings)
        return {kind: found[kind] for kind in _TITLES if found[kind]}

    def lines(self) -> list[str]:
        """How many findings of each kind there are, and the paths."""
        told = ", ".join(f"{count:,} {split}" for split, count in self.examples.items())
        lines = [f"checked {told} examples"]
        lines += [f"{_TITLES[kind]}: {count:,}" for kind, count in self.counts().items()]
        lines += [] if self.findings else ["nothing found"]
        if self.output is not None:
            lines.append(f"Report: {self.output / 'report.md'}")
        if self.cleaned:
            told = ", ".join(f"{count:,} {split}" for split, count in self.cleaned.items())
            lines.append(f"Cleaned copy, {told} examples: {self.output}/cleaned")
        return lines

    def tables(self) -> Iterable[Table]:
        for kind in self.counts():
            own = [each for each in self.findings if each.kind == kind]
            rows = [[each.place, each.what, each.text] for each in own]
            yield Table(_TITLES[kind], ["place", "finding", "text"], rows)


def run(options: CheckOptions, *, shown: bool = True) -> CheckResult:
    """Checks examples with a command's options."""
    read = [options.data, options.train, options.validation, options.test, options.model]
    output = options.output and check_output_folder(options.output, read)
    with progress("reading", shown=shown) as bar:
        from bert_tf.tasks.table import find_task, with_options

        task = with_options(find_task(options.task or "classification"), vars(options))
        splits = dict(_read(task, options))
        bar.update(0, note="and comparing")
        found = sorted(_findings(task, splits, options), key=_order)
    result = CheckResult(
        examples={split: len(examples) for split, examples in splits.items()},
        findings=found,
        output=Path(options.output) if options.output else None,
        notices=bar.notices,
    )
    if output:
        if options.clean:
            result.cleaned = _write_cleaned(task, splits, found, output / "cleaned")
        _write_report(result, output)
    return result


def _order(finding: Finding) -> tuple[int, int, int]:
    kinds = list(_TITLES)
    # The surest doubts come first, in the order in which they were found.
    index = 0 if finding.kind == "doubt" else finding.index
    return kinds.index(finding.kind), _SPLITS.index(finding.split), index


def _read(task: "Task", options: CheckOptions) -> "Iterator[tuple[str, Examples]]":
    given = {split: getattr(options, split) for split in _SPLITS}
    if options.data is not None:
        own = [split for split in _SPLITS if task.has(options.data, split)]
        given |= dict.fromkeys(own or ["train"], options.data)
    for split, path in given.items():
        if path is not None:
            try:
                yield split, task.read(path, split)
            except InputError:
                if split != "test":
                    raise
                yield split, task.read(path, split, labelled=False)  # published without labels


def _findings(
    task: "Task", splits: "Mapping[str, Examples]", options: CheckOptions
) -> Iterator[Finding]:
    from pipelines.examples import data_faults

    rows = [(split, i) for split, examples in splits.items() for i in range(len(examples))]
    texts = [text for examples in splits.values() for text in _texts(task, examples)]
    labels = [
        label
        for examples in splits.values()
        for label in examples.columns.get("label", [None] * len(examples))
    ]

    def finding(number: int, kind: str, what: str) -> Finding:
        split, index = rows[number]
        return Finding(kind, split, index, splits[split].place(index), what, texts[number])

    for number, text in enumerate(texts):
        if fault := data_faults.text_fault(text):
            yield finding(number, "empty" if fault == "empty" else "damaged", fault)
    main, others = data_faults.other_scripts(texts)
    for number, script in others.items():
        yield finding(number, "script", f"{script.lower()}, where most are {str(main).lower()}")
    yield from _cut(task, splits, options, finding)
    # One label of a text, or of a pair.
    is_class = (
        task.kind.has_probabilities
        and not task.kind.many_labels
        and set(task.kind.inputs(task)) <= {"text", "text_pair"}
    )
    known = [label for label in labels if isinstance(label, str)]
    spelling = data_faults.spelt_twice(known) if is_class else {}
    for number, label in enumerate(labels):
        if label in spelling:
            yield finding(number, "spelling", f"{label!r} for {spelling[label]!r}")
    labels = [spelling.get(label, label) for label in labels]
    for group in data_faults.near_duplicates(texts, options.similarity, options.seed):
        first = group.members[0]
        of_text = defaultdict(set)
        for number in group.members:
            of_text[texts[number]].add(labels[number])
        for number in group.members:
            different = {str(x) for x in of_text[texts[number]] if x is not None}
            if len(different) > 1:
                yield finding(number, "conflict", f"has the labels {', '.join(sorted(different))}")
        elsewhere = [n for n in group.members if rows[n][0] != "train"]
        for number, alike in zip(group.members, group.similarities, strict=True):
            if rows[number][0] == "train" and elsewhere:
                split, index = rows[elsewhere[0]]
                place = splits[split].place(index)
                yield finding(number, "leak", f"like {place}: {texts[elsewhere[0]][:_LONGEST]}")
            before = [n for n in group.members if n < number and rows[n][0] == rows[number][0]]
            if before:
                split, index = rows[before[0]]
                share = f"{alike:.0%} of" if before[0] == first else "like"
                yield finding(number, "duplicate", f"{share} {splits[split].place(index)}")
    if is_class and "label" in splits.get("train", next(iter(splits.values()))).columns:
        chosen = [n for n, x in enumerate(labels) if isinstance(x, str) and texts[n].strip()]
        doubts = data_faults.doubted_labels(
            [texts[n] for n in chosen], [labels[n] for n in chosen],
            wrong_share=options.wrong_share, seed=options.seed,
        )  # fmt: skip
        for doubt in doubts:
            what = f"{doubt.label!r}, probably {doubt.proposed!r} ({doubt.probability:.2f})"
            yield finding(chosen[doubt.place], "doubt", what)


def _texts(task: "Task", examples: "Examples") -> list[str]:
    """What is read of each example, as one string."""
    columns = [
        [" ".join(x) if isinstance(x, list) else x for x in examples.columns[name]]
        for name in task.kind.inputs(task)
    ]
    return [" ".join(parts).strip() for parts in zip(*columns, strict=True)]


def _cut(
    task: "Task", splits: "Mapping[str, Examples]", options: CheckOptions, finding: Any
) -> Iterator[Finding]:
    if options.model is None:
        return
    from bert_tf.tokenization.tokenizer import BertTokenizer

    tokenizer, first = BertTokenizer.from_directory(options.model), 0
    for examples in splits.values():
        columns = {name: examples.columns[name] for name in task.kind.inputs(task)}
        lengths = task.kind.lengths(columns, tokenizer)
        for index in (lengths > task.max_length).nonzero()[0].tolist():
            what = f"{lengths[index]:,} tokens, {task.max_length} are read"
            yield finding(first + index, "cut", what)
        first += len(examples)


def _write_cleaned(
    task: "Task", splits: "Mapping[str, Examples]", findings: Sequence[Finding], folder: Path
) -> dict[str, int]:
    """Writes each split as JSON lines with all columns of its file."""
    from pipelines.examples.data_faults import spelt_twice
    from pipelines.examples.labelled_text import read_columns_of

    dropped = {
        (each.split, each.index) for each in findings if each.kind in ("empty", "leak", "duplicate")
    }
    renamed = {each.kind for each in findings} & {"spelling"}
    every = [x for each in splits.values() for x in each.columns.get("label", ())]
    spelling = spelt_twice(every) if renamed else {}
    folder.mkdir(parents=True, exist_ok=True)
    kept = {}
    for split, examples in splits.items():
        columns = read_columns_of(examples.path, examples.lines, task.format)
        lines = []
        for index in range(len(examples)):
            if (split, index) not in dropped:
                row = {name: values[index] for name, values in columns.items()}
                if (label := row.get(task.label)) in spelling:
                    row[task.label] = spelling[label]
                lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        write_text(folder / f"{split}.jsonl", "".join(lines))
        kept[split] = len(lines)
    return kept


def _write_report(result: CheckResult, folder: Path) -> None:
    lines = ["# Check of the data", *result.lines()[: 1 + len(result.counts())]]
    for kind in result.counts():
        own = [each for each in result.findings if each.kind == kind]
        names = ["split", "place", "what", "text"]
        write_tsv(folder / f"{kind}.tsv", [names, *([asdict(x)[n] for n in names] for x in own)])
        lines.append(f"## {_TITLES[kind]}: {len(own):,}")
        lines.append(f"All: {kind}.tsv" if len(own) > _SHOWN else f"Also in {kind}.tsv")
        lines += [
            f"- {each.place}: {each.what}: {' '.join(each.text.split())[:_LONGEST]}"
            for each in own[:_SHOWN]
        ]
    write_text(folder / "report.md", "\n\n".join(lines) + "\n")
