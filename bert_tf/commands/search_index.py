"""Vectors of texts in a folder, and the texts that are nearest to a question."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.commands.answer_files import write_answers
from bert_tf.errors import InputError
from bert_tf.files.atomic import claim, write_json
from bert_tf.models.answerer import Answerer
from bert_tf.pipelines.corpus.sentence_splitting import split_sentences
from bert_tf.pipelines.examples.files import check_columns, format_of, read_table
from bert_tf.pipelines.examples.records import is_dataset_name, read_text
from bert_tf.pipelines.examples.table import MissingColumnError
from bert_tf.serving.export import ASSETS
from bert_tf.serving.predictor import Progress, answer
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tokenization.tokenizer import BertTokenizer

VECTORS, TEXTS, ABOUT = "vectors.npy", "texts.jsonl", "index.json"
_SUFFIXES = (".txt", ".md", ".rst", ".tsv", ".csv", ".jsonl")  # read in a folder
_TEXTS_AT_ONCE = 256  # that are divided
_AT_ONCE = 1 << 26  # numbers of vectors that a search multiplies together
# Cosine of a text's vectors by one model in two types: of exports with int8 products, 0.99.
_SAME_MODEL = 0.95


class Found(NamedTuple):
    score: float  # cosine with the question, or dot product
    text: str
    source: str  # file and line


def read_located_texts(
    path: str | Path,
    *,
    text_column: str = "text",
    format: Any = None,
    header: bool = True,
    remark: Callable[[str], object] = lambda _: None,
) -> Iterator[tuple[str, str]]:
    """Yields texts with their locations: rows of a table or JSON lines, paragraphs of other files.

    Of a folder it reads the files with the extensions of texts, sorted by name, but no tables
    without the column. `remark` is called with the files that are left out, and with what looks
    wrong with a table.
    """
    layout: dict[str, Any] = {"format": format, "header": header}
    if Path(path).is_dir():
        for file in sorted(Path(path).rglob("*")):
            suffix = Path(file.name.lower().removesuffix(".gz")).suffix
            if not (file.is_file() and suffix in _SUFFIXES):
                continue
            try:
                check_columns(file, {"text": text_column}, **layout)
            except MissingColumnError as error:
                remark(f"left out: {error}")
                continue
            yield from read_located_texts(file, text_column=text_column, remark=remark, **layout)
    elif format or format_of(path) or is_dataset_name(str(path)):
        examples = read_table(path, **layout).examples({"text": text_column})
        for line in examples.remarks():
            remark(line)
        for number, text in enumerate(examples.columns["text"]):
            if text.strip():
                yield text, examples.location(number)
    else:
        lines: list[str] = []
        for number, line in enumerate([*read_text(path).split("\n"), ""], 1):
            if line.strip():
                lines.append(line.strip())
            elif lines:
                yield " ".join(lines), f"{path}, line {number - len(lines)}"
                lines = []


def divided(
    located: Sequence[tuple[str, str]], model: Answerer, max_length: int | None
) -> list[tuple[str, str]]:
    """Splits located texts into passages of at most `max_length` tokens, each with its location.

    By default as many tokens as the model reads; InputError for more.
    """
    kind, longest = model.task.kind, model.task.max_length
    reads_windows = getattr(kind, "reads_windows", False)
    if max_length is None and reads_windows:
        return list(located)
    if (max_length or 0) > longest and not reads_windows:
        raise InputError(
            f"--max_length {max_length} is above the {longest} tokens that the model reads: give "
            "at most these"
        )
    prompt = getattr(kind, "document_prompt", None) or getattr(kind, "prompt", "")
    tokenizer = model.tokenizer or BertTokenizer.from_directory(model.model.directory / ASSETS)
    size = (max_length or longest) - 2 - len(tokenizer.tokenize([prompt]).flat_values)
    divided = []
    parts = passages([text for text, _ in located], tokenizer, max(1, size))
    for (text, location), spans in zip(located, parts, strict=True):
        for i, j in spans:
            part = f"{location}, characters {i + 1} to {j}" if len(spans) > 1 else location
            divided.append((text[i:j].strip(), part))
    return divided


def passages(
    texts: Sequence[str], tokenizer: BertTokenizer, size: int
) -> Iterator[list[tuple[int, int]]]:
    """Yields, for each text, where its passages of at most `size` pieces start and end.

    The places are in characters. A passage is as many whole sentences as fit; a longer sentence is
    divided between words, and a longer word between characters. A text that fits is one passage.
    """
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        batch = texts[first : first + _TEXTS_AT_ONCE]
        _, *columns = tokenizer.tokenize_with_offsets([text.encode() for text in batch])
        splits = columns[0].row_splits.numpy()
        starts, ends = (np.split(x.flat_values.numpy(), splits[1:-1]) for x in columns)
        long = [i for i, pieces in enumerate(starts) if len(pieces) > size]
        sentences = dict(zip(long, _sentences([batch[i] for i in long]), strict=True))
        for i, text in enumerate(batch):
            if i in sentences:
                yield _spans(text, starts[i], ends[i], sentences[i], size)
            else:
                yield [(0, len(text))]


def _sentences(texts: Sequence[str]) -> list[np.ndarray]:
    """The characters that the sentences of each text begin with, int64."""
    beginnings = []
    sentences = split_sentences(tf.constant([text.encode() for text in texts], tf.string))
    for text, split in zip(texts, sentences.to_list(), strict=True):
        letters = [len("".join(sentence.decode().split())) for sentence in split]
        indices = np.array([i for i, character in enumerate(text) if not character.isspace()])
        beginnings.append(indices[np.cumsum([0, *letters[:-1]])])
    return beginnings


def _spans(
    text: str, starts: np.ndarray, ends: np.ndarray, sentences: np.ndarray, size: int
) -> list[tuple[int, int]]:
    """Where the passages of a text start and end; `starts` and `ends` are those of its pieces."""
    encoded = np.frombuffer(text.encode(), np.uint8)
    character = np.cumsum((encoded & 0xC0) != 0x80) - 1  # of each byte
    begins = character[starts]  # (P,) of the pieces
    at_character = np.diff(begins, prepend=-1) > 0  # a letter may be several pieces
    at_word = np.append(True, starts[1:] > ends[:-1])
    at_sentence = np.isin(begins, sentences) & at_character
    # Pieces that may begin a passage, the best first.
    breaks = [np.flatnonzero(candidates) for candidates in (at_sentence, at_word, at_character)]
    spans: list[tuple[int, int]] = []
    piece = 0
    while piece < len(begins):
        following = limit = piece + size
        if limit < len(begins):
            for candidates in breaks:
                fitting = candidates[(candidates > piece) & (candidates <= limit)]
                if len(fitting):
                    following = fitting[-1]
                    break
        end = len(text) if following >= len(begins) else int(begins[following])
        spans.append((int(begins[piece]) if spans else 0, end))
        piece = following
    return spans


def vectors_of(
    model: Answerer,
    texts: Sequence[str],
    batch_size: int,
    answered: Progress = lambda _: None,
    *,
    role: str = "document",
) -> tuple[np.ndarray, int]:
    """Vectors of texts, float32 [N, W], and how many texts were truncated.

    The texts are questions (`role` "query") or what is searched ("document"). Vectors have length
    1, except those of a model that compares by dot product.

    Raises InputError if the model gives no vectors that can be compared.
    """
    signature = model.function(role if role in model.signatures() else DEFAULT)
    answers: Mapping[str, np.ndarray] = {}
    if list(signature.structured_input_signature[1]) == ["text"]:
        answers = answer(signature, {"text": list(texts)}, batch_size, answered=answered)
    if "vector" not in answers:
        raise InputError(
            "the model was not trained for vectors that can be compared: give a model of "
            "bert-tf finetune --task embedding, or a sentence-transformers directory"
        )
    truncated = int(np.count_nonzero(answers["truncated"]))
    vectors = answers["vector"].astype(np.float32)
    if getattr(model.task.kind, "similarity", "cosine") == "dot":
        return vectors, truncated
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12), truncated


def write_index(
    folder: Path, model: str, texts: Sequence[tuple[str, str]], vectors: np.ndarray
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ABOUT, VECTORS):
        claim(folder / name)
    (folder / ABOUT).unlink(missing_ok=True)  # it describes the vectors to come
    np.save(folder / VECTORS, vectors)
    write_answers(folder / TEXTS, [{"text": text, "source": source} for text, source in texts])
    about = {"model": str(Path(model).resolve()), "texts": len(texts)}
    write_json(folder / ABOUT, {**about, "width": vectors.shape[1]})


@dataclass(frozen=True, eq=False)
class SearchIndex:
    """An index that is read: lines of texts in memory, vectors mapped from the disk."""

    folder: Path
    model: str  # the model whose vectors they are
    vectors: np.ndarray  # float32 [N, W]
    lines: Sequence[str]  # of texts.jsonl; parsed when found, since a million take seconds

    @classmethod
    def read(cls, folder: str | Path) -> "SearchIndex":
        """Reads what `write_index` wrote; raises InputError if it cannot."""
        folder = Path(folder)
        with _named(folder):
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            vectors = np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
            # Not `splitlines`: texts may contain other line ends, such as U+2028.
            lines = (folder / TEXTS).read_text(encoding="utf-8").split("\n")[:-1]
            if vectors.shape != (about["texts"], about["width"]) or len(lines) != len(vectors):
                raise ValueError("its files are of different indexes")
            return cls(folder, about["model"], vectors, lines)

    def check_model(self, name: str | Path, model: Answerer) -> None:
        """Refuses, with InputError, a model that gives the first text another vector."""
        with _named(self.folder):
            text = json.loads(self.lines[0])["text"]
        stored, (vector,) = self.vectors[0], vectors_of(model, [text], 1)[0]
        if vector.shape != stored.shape:
            return  # `nearest` refuses the question's
        lengths = np.linalg.norm(stored) * np.linalg.norm(vector)
        if not stored @ vector >= _SAME_MODEL * lengths:
            raise InputError(
                f"{name} is not the model that made {self.folder}, or has been trained since: "
                "repeat bert-tf index, or give --model the one of then"
            )

    def nearest(self, question: np.ndarray, count: int) -> list[Found]:
        """The `count` texts nearest to a vector [W], in order; of equal ones the first.

        Raises InputError for other widths.
        """
        if question.shape != self.vectors.shape[1:]:
            raise InputError(
                f"the model's vectors have {len(question)} numbers, those of the index "
                f"{self.vectors.shape[1]}: give the model that the index was made with"
            )
        rows = max(1, _AT_ONCE // self.vectors.shape[1])
        starts = range(0, len(self.vectors), rows)
        scores = np.concatenate([self.vectors[i : i + rows] @ question for i in starts])
        last = min(count, len(scores)) - 1
        best = np.flatnonzero(~(scores < -np.partition(-scores, last)[last]))
        best = best[np.argsort(-scores[best], kind="stable")][:count]
        with _named(self.folder):
            return [Found(float(scores[i]), **json.loads(self.lines[i])) for i in best.tolist()]


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Turns the errors of missing or damaged files into an InputError that names the index."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder} is no index ({error}): make one with bert-tf index") from error
