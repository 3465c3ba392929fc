"""Owner's marks: what a command wrote into its output folder, and may therefore replace.

The mark is a file of the folder, `.bert-tf.json`: the kind of output, the settings that it was made
with, and its files. All that `bert_tf.files.atomic` writes into a held folder is entered before it
is written, and what is there without an entry is another's: it is refused by name, never replaced.
"""

import contextlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import (
    MARK,
    StrPath,
    files_below,
    hold_output,
    remove_empty_folders,
    write_json,
)
from bert_tf.files.outputs import is_one_of

# Files of models in outputs of earlier versions, which have no marks.
_MODELS = ("*.json", "*.safetensors", "*.tsv", "*.conll", "*.png", "report.md", "conlleval.txt")
_OLD_FILES = (
    *(f"{folder}/{name}" for folder in ("best", "last") for name in (*_MODELS, "vocab.txt")),
    "best/1_Pooling/config.json",
    "last/1_Pooling/config.json",
    "checkpoints/step-*.safetensors",
    "data/train.jsonl",
    "data/validation.jsonl",
    "search.json",
    "seeds.json",
    "config.yaml",
)


@dataclass(frozen=True)
class Layout:
    """A kind of output folder."""

    title: str
    parts: tuple[str, ...]  # files and folders that it has; with a slash, those it owns as a whole
    is_old: Callable[[Path], bool]  # whether an earlier version made a folder of this kind


def _first_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return lines[0] if lines else ""


def _is_old_run(folder: Path) -> bool:
    path = folder / "config.yaml"
    written = r"(?m)^steps_per_execution: "
    return path.is_file() and bool(re.search(written, path.read_text(errors="replace")))


SEARCH = Layout(
    "a search",
    ("best", "logs/", "search.json", "search.md", "search.png", "search.tsv"),
    lambda folder: (folder / "search.json").is_file(),
)
SEEDS = Layout(
    "runs of several seeds",
    ("best", "seeds.json"),
    lambda folder: (folder / "seeds.json").is_file(),
)
RUN = Layout(
    "a run of one seed", ("best", "last", "checkpoints/", "logs/", "config.yaml"), _is_old_run
)
EVALUATION = Layout(
    "an evaluation",
    ("metrics.json", "report.md"),
    lambda folder: _first_line(folder / "report.md") == "# Evaluation",
)
CHECK = Layout(
    "a check of data",
    ("cleaned", "report.md"),
    lambda folder: _first_line(folder / "report.md") == "# Check of the data",
)
INDEX = Layout(
    "an index",
    ("index.json", "texts.jsonl", "vectors.npy"),
    lambda folder: (folder / "index.json").is_file() and (folder / "vectors.npy").is_file(),
)
# The first that fits counts: a search has a config.yaml, too.
_LAYOUTS = (SEARCH, SEEDS, RUN, EVALUATION, CHECK, INDEX)


@dataclass
class Mark:
    """What bert-tf wrote into a folder."""

    folder: Path
    kind: str
    files: set[str] = field(default_factory=set)  # names, with a slash for whole folders
    settings: dict[str, Any] | None = None  # None if they are not known
    is_old: bool = False  # of an earlier version, which did not list its files
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def find(cls, folder: StrPath) -> "Mark | None":
        """The mark of a folder; None if bert-tf made nothing there."""
        folder = Path(folder).resolve()
        path = folder / MARK
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                folder, stored["kind"], set(stored["files"]), stored["settings"], stored["is_old"]
            )
        except FileNotFoundError:
            old = next((layout for layout in _LAYOUTS if layout.is_old(folder)), None)
            return None if old is None else cls(folder, old.title, is_old=True)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{path} cannot be read ({error}): restore it, or give another --output"
            ) from error

    @classmethod
    def of(cls, folder: StrPath, layout: Layout) -> "Mark":
        """The mark of a folder for one kind of output, which need not have begun.

        Raises InputError if the folder holds another kind, or parts that bert-tf did not make.
        """
        mark = cls.find(folder)
        if mark is None:
            mark = cls(Path(folder).resolve(), layout.title)
            for path in (mark.folder / part for part in layout.parts):
                if path.is_file() or files_below(path):
                    raise _another(path)
        if mark.kind != layout.title:
            raise InputError(
                f"{folder}: holds {mark.kind}, not {layout.title}: give another --output"
            )
        mark.files |= {part for part in layout.parts if part.endswith("/")}
        return mark

    def write(self) -> None:
        values = {"kind": self.kind, "settings": self.settings, "is_old": self.is_old}
        write_json(self.folder / MARK, {**values, "files": sorted(self.files)})

    def owns(self, path: Path) -> bool:
        name = path.relative_to(self.folder)
        above = (f"{parent.as_posix()}/" for parent in name.parents)
        return (
            name.as_posix() in self.files
            or not self.files.isdisjoint(above)
            or (self.is_old and is_one_of(name, _OLD_FILES))
        )

    def claim(self, path: Path) -> None:
        """Enters a file that is about to be written; InputError if another's is there."""
        with self._lock:
            if not self.owns(path):
                if path.exists() and not self.is_old:
                    raise _another(path)
                self._enter([path])

    def claim_folder(self, path: Path, names: Iterable[Path]) -> None:
        """Enters the files `names` of a folder that is about to be replaced, like `claim`."""
        with self._lock:
            for file in files_below(path):
                if not self.owns(file):
                    raise _another(file)
            self._enter(path / name for name in names)

    def _enter(self, paths: Iterable[Path]) -> None:
        names = {path.relative_to(self.folder).as_posix() for path in paths}
        if not names <= self.files:
            self.files |= names
            self.write()

    def remove(self, name: str) -> None:
        """Removes those files of a subfolder that are bert-tf's."""
        folder = self.folder / name
        with contextlib.suppress(OSError):
            for file in files_below(folder):
                if self.owns(file):
                    file.unlink()
        remove_empty_folders(folder)


@contextlib.contextmanager
def owned(folder: StrPath | None, layout: Layout) -> Iterator[None]:
    """Holds an output folder, if there is one, whose own files alone the block may replace.

    Raises InputError as `Mark.of`.
    """
    if not folder:
        yield
        return
    mark = Mark.of(folder, layout)
    with hold_output(folder, mark):
        yield


def _another(path: Path) -> InputError:
    return InputError(
        f"{path}: would be replaced, and no run of bert-tf made it: move it away, or give another "
        "--output"
    )
