"""Owner's marks: what a command wrote into its output folder, and may therefore replace.

The mark is a file of the folder, `.bert-tf.json`: the kind of output, the settings that it was made
with, and its files. All that `bert_tf.files.atomic` writes into a held folder is entered before it
is written, and what is there without an entry is another's: it is refused by name, never replaced.
"""

import contextlib
import json
import threading
from collections.abc import Iterable, Iterator
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


@dataclass(frozen=True)
class Layout:
    """A kind of output folder."""

    title: str
    parts: tuple[str, ...]  # files and folders that it has; with a slash, those it owns as a whole


SEARCH = Layout(
    "a search", ("best", "logs/", "search.json", "search.md", "search.png", "search.tsv")
)
SEEDS = Layout("runs of several seeds", ("best", "seeds.json"))
RUN = Layout("a run of one seed", ("best", "last", "checkpoints/", "logs/", "config.yaml"))
EVALUATION = Layout("an evaluation", ("metrics.json", "report.md"))
CHECK = Layout("a check of data", ("report.md",))


@dataclass
class Mark:
    """What bert-tf wrote into a folder."""

    folder: Path
    kind: str
    files: set[str] = field(default_factory=set)  # names, with a slash for whole folders
    settings: dict[str, Any] | None = None  # None if they are not known
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def find(cls, folder: StrPath) -> "Mark | None":
        """The mark of a folder; None if bert-tf made nothing there."""
        folder = Path(folder).resolve()
        path = folder / MARK
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            return cls(folder, stored["kind"], set(stored["files"]), stored["settings"])
        except FileNotFoundError:
            return None
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
        values = {"kind": self.kind, "settings": self.settings}
        write_json(self.folder / MARK, {**values, "files": sorted(self.files)})

    def owns(self, path: Path) -> bool:
        name = path.relative_to(self.folder)
        above = (f"{parent.as_posix()}/" for parent in name.parents)
        return name.as_posix() in self.files or not self.files.isdisjoint(above)

    def claim(self, path: Path) -> None:
        """Enters a file that is about to be written; InputError if another's is there."""
        with self._lock:
            if not self.owns(path):
                if path.exists():
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
