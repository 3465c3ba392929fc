"""The list of pieces: read, checked and written."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from bert_tf.atomic import replace_file
from bert_tf.errors import InputError

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


class Vocabulary:
    """Pieces and their ids; a piece's id is its place in the list.

    Args:
        pieces: distinct strings, the special tokens among them.
        source: where they come from, for messages.

    Raises:
        InputError: there is no piece, one stands twice, one cannot stand on a line of its own, or
            a special token is missing.
    """

    def __init__(self, pieces: Sequence[str], source: str = "the vocabulary"):
        self.pieces = list(pieces)
        if not self.pieces:
            raise InputError(f"{source}: holds no pieces; give a vocab.txt with one on each line")
        self.ids = {piece: index for index, piece in enumerate(self.pieces)}
        if len(self.ids) < len(self.pieces):
            index = next(i for i, piece in enumerate(self.pieces) if self.ids[piece] != i)
            piece = self.pieces[index]
            raise InputError(
                f"{source}: line {self.ids[piece] + 1} repeats line {index + 1}, {piece!r}; "
                "remove or rename one of them (each piece needs an id of its own)"
            )
        for index, piece in enumerate(self.pieces):
            if not piece or "\n" in piece:
                raise InputError(
                    f"{source}: line {index + 1} holds no piece; "
                    "put one there, such as [unused1], so that the ids after it stay"
                )
        missing = [token for token in SPECIAL_TOKENS if token not in self.ids]
        if missing:
            raise InputError(
                f"{source}: lacks {', '.join(missing)}; add a line for each "
                "(in a model's vocabulary in place of an unused piece: other ids must not move)"
            )

    def __len__(self) -> int:
        return len(self.pieces)

    def hash(self) -> str:
        """SHA-256, in hexadecimal, of the file that `write_vocabulary` makes."""
        return hashlib.sha256(_file_content(self.pieces)).hexdigest()


def read_vocabulary(path: str | os.PathLike) -> Vocabulary:
    """Reads a `vocab.txt`: a piece on each line, UTF-8.

    Raises:
        InputError: the file is missing, is not UTF-8, or is no vocabulary.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror
        raise InputError(f"{path}: {reason}; give the path of a vocab.txt") from None
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    pieces = []
    for number, line in enumerate(lines, 1):
        try:
            pieces.append(line.rstrip(b"\r").decode("utf-8"))
        except UnicodeDecodeError:
            raise InputError(
                f"{path}: line {number} is not UTF-8; save the vocabulary as UTF-8"
            ) from None
    return Vocabulary(pieces, str(path))


def write_vocabulary(path: str | os.PathLike, pieces: Sequence[str]) -> None:
    """Writes a `vocab.txt`, whole or not at all."""
    with replace_file(path) as temporary:
        temporary.write_bytes(_file_content(pieces))


def _file_content(pieces: Sequence[str]) -> bytes:
    return "".join(f"{piece}\n" for piece in pieces).encode("utf-8")
