"""Make an index of texts that bert-tf ask searches.

  bert-tf index --model models/all-MiniLM-L6-v2 --input texts/ --output index/
  bert-tf index --model runs/search/best --input articles.jsonl --text_column body --output index/

A text is a row of a table or of JSON lines; in other files, and in the files of a folder, a
paragraph: lines up to a blank one. Of a folder .txt, .md, .rst, .tsv, .csv and .jsonl files are
read, also as .gz; those that lack the column of texts are named and left out. The index has
vectors.npy (float32, length 1), texts.jsonl (the text and where it is) and index.json.
"""

import functools
from dataclasses import dataclass
from pathlib import Path

from bert_tf.api.progress import console, progress
from bert_tf.errors import InputError
from bert_tf.options import option
from bert_tf.outputs import check_output_folder
from bert_tf.owners import INDEX, owned
from bert_tf.tasks.task_options import FileOptions


@dataclass(kw_only=True)
class Options(FileOptions):
    """Options of `bert-tf index`."""

    model: str = option(path=True, model=True)
    """a model of bert-tf finetune --task embedding, its export, a sentence-transformers directory,
    or a model of the Hugging Face hub, ORG/NAME."""
    input: str = option(path=True)
    """folder of texts, or a file."""
    output: str = option(writes="folder")
    """folder for the index."""
    batch_size: int = option(64, at_least=1)
    """texts per batch."""


def run(options: Options) -> None:
    output = check_output_folder(options.output, [options.model, options.input])
    with owned(output, INDEX), progress("loading") as bar:
        from bert_tf.trained.search_index import read_located_texts, vectors_of, write_index

        column = options.text_column or "text"
        remarks: list[str] = []
        texts_of = read_located_texts(
            options.input, text_column=column, format=options.format, header=options.header,
            remark=remarks.append,
        )  # fmt: skip
        located = list(texts_of)
        if not located:
            nothing = f"{options.input} has no text: give a folder or a file that has"
            raise InputError("; ".join([nothing, *remarks[:1]]))
        texts = [text for text, _ in located]
        answered = functools.partial(bar.update, total=len(texts), note="and computing")
        vectors, truncated = vectors_of(options.model, texts, options.batch_size, answered)
        write_index(output, options.model, located, vectors)
    for remark in remarks:
        console.print(remark)
    cut = f"; {truncated:,} were cut at the model's length" if truncated else ""
    console.print(f"{len(texts):,} texts, vectors of {vectors.shape[1]} numbers{cut}: {output}")
    console.print(f'Ask: bert-tf ask --index {Path(options.output)} --text "a question"')
