"""Make an index of texts that bert-tf ask searches.

  bert-tf index --model models/all-MiniLM-L6-v2 --input texts/ --output index/
  bert-tf index --model runs/search/best --input articles.jsonl --text_column body --output index/

A text is a row of a table or of JSON lines; in other files, and in the files of a folder, a
paragraph: lines up to a blank one. Texts longer than the model reads become passages of whole
sentences. Of a folder .txt, .md, .rst, .tsv, .csv and .jsonl files are read, also as .gz; those
that lack the column of texts are named and left out. The index has vectors.npy (float32, length 1),
texts.jsonl (the text and where it is) and index.json.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from bert_tf.commands.function import CommandOptions, function
from bert_tf.commands.progress import command_line, console, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.files.owners import INDEX, owned
from bert_tf.options import PathName, option
from bert_tf.tasks.task_options import FileOptions


@dataclass(kw_only=True)
class Options(CommandOptions, FileOptions):
    """Options of `bert-tf index`."""

    model: PathName = option(path=True, model=True)
    """a model of bert-tf finetune --task embedding, its export, a sentence-transformers directory,
    or a model of the Hugging Face hub, ORG/NAME."""
    input: PathName = option(path=True)
    """folder of texts, or a file."""
    output: PathName = option(writes="folder")
    """folder for the index."""
    passages: bool = True
    """split texts longer than --max_length into passages between sentences, or else between words;
    each has a vector of its own. Otherwise texts are cut at what the model reads."""
    max_length: int | None = option(None, at_least=3)
    """maximum tokens of a passage, [CLS] and [SEP] included; by default what the model reads. A
    model that was trained with --long_texts windows reads texts of any length."""
    batch_size: int = option(64, at_least=1)
    """texts per batch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length is not None and not self.passages:
            raise InputError("--max_length is the length of passages: leave --no_passages out")


@dataclass(kw_only=True, repr=False, eq=False)
class IndexResult(Result):
    """The outcome of `index`.

    Attributes:
        output: folder of the index.
        texts: number of texts.
        passages: number of passages, each with a vector.
        width: numbers in a vector.
        truncated: number of passages that were cut at the model's length.
        remarks: on the texts, if there are any to make.
    """

    output: Path
    texts: int
    passages: int
    width: int
    truncated: int
    remarks: list[str]

    def lines(self) -> list[str]:
        cut = f"; {self.truncated:,} were cut at the model's length" if self.truncated else ""
        parts = f" in {self.passages:,} passages" if self.passages > self.texts else ""
        counts = f"{self.texts:,} texts{parts}, vectors of {self.width} numbers{cut}"
        return [*self.remarks, f"{counts}: {self.output}"]


def run(options: Options) -> IndexResult:
    """Makes an index of texts to search, as `bert-tf index` does.

    Returns:
        The folder of the index, for `ask`.
    """
    output = Path(options.output)
    with owned(output, INDEX), progress("loading", shown=options.shown) as bar:
        from bert_tf.commands.search_index import (
            divided,
            read_located_texts,
            vectors_of,
            write_index,
        )
        from bert_tf.models.opening import open_answerer

        column = options.text_column or "text"
        remarks: list[str] = []
        texts_of = read_located_texts(
            options.input,
            text_column=column,
            format=options.format,
            header=options.header,
            remark=remarks.append,
        )
        located = list(texts_of)
        if not located:
            nothing = f"{options.input} has no text: give a folder or a file that has"
            raise InputError("; ".join([nothing, *remarks[:1]]))
        count, model = len(located), open_answerer(options.model)
        if options.passages:
            located = divided(located, model, options.max_length)
        texts = [text for text, _ in located]
        answered = functools.partial(bar.update, total=len(texts), note="and computing")
        vectors, truncated = vectors_of(model, texts, options.batch_size, answered)
        write_index(output, options.model, located, vectors)
    return IndexResult(
        output=output,
        texts=count,
        passages=len(texts),
        width=vectors.shape[1],
        truncated=truncated,
        remarks=remarks,
    )


def show(result: IndexResult, options: Options) -> None:
    ask = command_line("ask", "--index", Path(options.output), "--text", "a question")
    console.print(f"{result}\nAsk: {ask}")


index = function("index", Options, run)
