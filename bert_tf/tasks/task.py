"""Tasks as data: how files look, how they are scored, and what is known of a task."""

import ast
import functools
import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError
from bert_tf.pipelines.examples.bad_rows import read_good_rows, refuse
from bert_tf.pipelines.examples.files import read_table
from bert_tf.pipelines.examples.reading import is_dataset_name, split_in
from bert_tf.pipelines.examples.table import Examples, Format, MissingColumnError, Table
from bert_tf.tasks.scoring.metrics import Score, f1, macro_f1

_SETTINGS = {  # name in options and task.json -> attribute of `Task`
    "text_column": "text",
    "pair_column": "pair",
    "label_column": "label",
    "max_length": "max_length",
    "format": "format",
}

# What evaluation asks with first -> the format of files whose names tell none.
_FORMATS = {"question": "json", "words": "conll", "sentence": "lines"}


@dataclass(frozen=True)
class KindName:
    """Stands for a kind in the table until a task is looked up: kinds import TensorFlow."""

    module: str  # in `bert_tf.tasks.kinds`
    name: str  # of its class there
    is_trained: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    reads: str = "Reader"  # its reader in `bert_tf.tasks.readers`

    def __call__(self, **settings: Any) -> "KindName":
        return replace(self, settings=settings)

    def load(self) -> Any:
        module = importlib.import_module(f"bert_tf.tasks.kinds.{self.module}")
        return getattr(module, self.name)(**self.settings)

    def reader(self) -> Any:
        """What reads the kind's examples, without TensorFlow."""
        module = importlib.import_module("bert_tf.tasks.readers")
        return getattr(module, self.reads)().with_settings(self.settings)

    def docstring(self) -> str:
        """The docstring of the class, read from its source."""
        source = Path(__file__).with_name("kinds").joinpath(f"{self.module}.py")
        tree = ast.parse(source.read_text(encoding="utf-8"))
        classes = (node for node in tree.body if isinstance(node, ast.ClassDef))
        return next(ast.get_docstring(x) or "" for x in classes if x.name == self.name)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task as data: how its files look and how it is scored."""

    name: str  # on the command line
    kind: Any  # a `bert_tf.tasks.kinds.kind.Kind`; a `KindName` in the table
    text: str = "text"  # column of the (first) text: its name, or its number from 0
    pair: str | None = None  # column of the second text of a pair
    label: str = "label"
    labels: tuple[str, ...] = ()  # of a new model, in its order; by default the data's, sorted
    # Functions of `scoring.metrics`, or names of the kind's scores; the first chooses the best.
    scores: tuple[Score | str, ...] = ()
    format: Format | None = None  # by default the extension decides
    header: bool = True  # whether tables begin with a line of column names
    skip_broken: bool = False  # skip (and count) table rows with a wrong number of columns
    # Split, such as "validation" -> possible names of its published file.
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Column -> its name in the published test file; column or split -> that in TensorFlow Datasets.
    test_columns: Mapping[str, str] = field(default_factory=dict)
    tfds: Mapping[str, str] = field(default_factory=dict)
    label_aliases: Mapping[str, str] = field(default_factory=dict)  # other name -> label
    submissions: Mapping[str, str] = field(default_factory=dict)  # split -> its official file
    # Defaults of options, the paper's where it names them.
    max_length: int = 128
    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 5e-5
    # Scores of BERT's paper by model size, on its "test" or "dev" set. Beside them, by weights,
    # means over three seeds on the development set (docs/scores.md).
    paper: Mapping[str, float] = field(default_factory=dict)
    paper_split: str = "test"
    reached: Mapping[str, float] = field(default_factory=dict)

    def columns(self, *, labelled: bool = True) -> dict[str, str]:
        pair = {} if self.pair is None else {"text_pair": self.pair}
        return {"text": self.text, **pair, **({"label": self.label} if labelled else {})}

    @property
    def inputs(self) -> list[str]:
        """Names of the strings that evaluation asks with."""
        return list(self.kind.signatures(self)[self.kind.evaluated].inputs)

    @property
    def _first_input(self) -> str:
        is_reader = not hasattr(self.kind, "signatures")
        return getattr(self.kind, "first_input", "text") if is_reader else self.inputs[0]

    @property
    def many_labels(self) -> bool:
        """Whether an example has any number of labels, instead of one."""
        return hasattr(self.kind, "label_separator")

    @property
    def kind_name(self) -> str:
        """The name of the kind's class in words, such as "sentence embedding"."""
        name = self.kind.name if isinstance(self.kind, KindName) else type(self.kind).__name__
        return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()

    @property
    def kind_line(self) -> str:
        """The kind's name, and what it does."""
        kind = self.kind
        text = kind.docstring() if isinstance(kind, KindName) else kind.__doc__ or ""
        first, _, _ = text.partition("\n")
        return f"{self.kind_name}: {first}"

    def canonical_labels(self, labels: Iterable[str]) -> list[str]:
        """Labels by the task's names for them."""
        return [self.label_aliases.get(label, label) for label in labels]

    def ordered(self, labels: Sequence[str]) -> Sequence[str]:
        """A model's labels in the task's order, if it names them; the model may have another."""
        return self.labels if sorted(self.labels) == sorted(labels) else labels

    def score_functions(self, labels: Sequence[str]) -> list[Any]:
        """`scores` for a model's labels: F1 is macro F1 unless there are two classes."""
        return [macro_f1 if x is f1 and len(labels) != 2 else x for x in self.scores]

    def score_names(self, labels: Sequence[str]) -> list[str]:
        return [x if isinstance(x, str) else x.__name__ for x in self.score_functions(labels)]

    def read(
        self,
        data: str | Path,
        split: str,
        *,
        labelled: bool = True,
        faults: list[InputError] | None = None,
    ) -> Examples:
        """Reads a split; without labels no row is skipped, as each needs a prediction.

        `data` is the folder of the published files; a file of any name; "-" for standard input; or
        a name of TensorFlow Datasets, such as `tfds:glue/mnli`, which may end with a split. Rows
        that cannot be used are left out and added to `faults`; without it InputError names them.
        """
        found: list[InputError] = []
        path = str(data)
        names = self.tfds
        if not is_dataset_name(data):
            path = str(self.file(data, split))
            is_test = self.split_of(path).startswith("test")
            names = self.test_columns if is_test and not labelled else {}
        elif split_in(path) is None:
            path = f"{data}:{self.tfds.get(split, split)}"
        columns = {
            role: names.get(column, column)
            for role, column in self.columns(labelled=labelled).items()
        }
        try:
            table = read_table(
                path,
                self.format,
                header=self.header or columns["text"] != self.text,
                skip_broken=self.skip_broken and labelled,
                default=_FORMATS.get(self._first_input),
                is_certain=labelled or bool(self.split_of(path)),
                faults=found,
            )
            if not len(table):
                refuse(found)
            examples = self.examples(table, columns, found)
            if faults is None:
                refuse(found)
            else:
                faults += found
            return examples
        except MissingColumnError as error:
            here = split if is_dataset_name(data) else self.split_of(path)
            if labelled and (here.startswith("test") or here in self.submissions):
                raise InputError(
                    f"{path} has no labels to compare with: give another --split, or answer it "
                    "with bert-tf predict"
                ) from error
            raise

    def examples(
        self,
        table: Table,
        columns: Mapping[str, str],
        faults: list[InputError] | None = None,
    ) -> Examples:
        """Examples of a table with the names of columns by role; without labels if none has them.

        Rows that cannot be used are left out and added to `faults`; without it InputError names
        them.
        """
        found: list[InputError] = []
        try:
            examples = self.kind.read(table, columns)
        except InputError as error:
            read = functools.partial(self.kind.read, columns=columns)
            examples, found = read_good_rows(read, table, error)
        if faults is None:
            refuse(found)
        else:
            faults += found
        if self.label_aliases and "label" in examples.columns:
            examples.columns["label"] = self.canonical_labels(examples.columns["label"])
        return examples

    def has(self, data: str | Path, split: str) -> bool:
        """Whether `data`, as of `read`, is several splits and this one is among them."""
        if is_dataset_name(data):
            return bool(self.files.get(split)) and split_in(str(data)) is None
        return bool(self._published(data, split))

    def _published(self, folder: str | Path, split: str) -> list[Path]:
        paths = (Path(folder) / name for name in self.files.get(split, ()))
        return [path for path in paths if path.is_file()]

    def split_of(self, data: str | Path, default: str = "") -> str:
        """The split that the name of a published file or of TensorFlow Datasets says."""
        if is_dataset_name(data):
            named = split_in(str(data)) or default
            # The split "test" of another data set, such as glue/mnli_mismatched, is none of ours.
            return named if named == default or self.tfds.get(named, named) == named else ""
        published = (split for split, names in self.files.items() if Path(data).name in names)
        return next(published, default)

    def file(self, data: str | Path, split: str) -> Path:
        """The file `data` itself, or the published file of the split in the folder `data`."""
        if not Path(data).is_dir():
            return Path(data)
        if paths := self._published(data, split):
            return paths[0]
        if not self.files:
            raise InputError(f"{data} is a folder; {self.name} knows no file names: give a file")
        if not self.files.get(split):
            known = ", ".join(self.files)
            raise InputError(f"the task {self.name} has no split {split!r}: give one of {known}")
        others = [other for other in self.files if self.has(data, other)]
        cure = f", or --split {' or '.join(others)}" if others else ""
        raise InputError(
            f"{data} lacks {' and '.join(self.files[split])}: give the {split} file of the task "
            f"{self.name}{cure}"
        )

    def with_settings(self, settings: Mapping[str, Any]) -> "Task":
        """The task with other `settings`; None keeps a value, and other keys are ignored."""
        values = {field: settings.get(name) for name, field in _SETTINGS.items()}
        changed: dict[str, Any] = {f: value for f, value in values.items() if value is not None}
        # Column names need a header, even if the published file has none.
        columns = (str(changed[role]) for role in ("text", "pair", "label") if role in changed)
        named = not all(map(str.isdecimal, columns))
        header = settings.get("header") is not False and (self.header or named)
        return replace(self, kind=self.kind.with_settings(settings), header=header, **changed)

    def settings(self) -> dict[str, Any]:
        values = {name: getattr(self, field) for name, field in _SETTINGS.items()}
        return {"task": self.name, **values, "header": self.header, **self.kind.settings()}
