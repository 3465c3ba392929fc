import itertools
from collections import Counter

from bert_tf.pipelines.corpus.formats import input_errors, read_lines, read_slice
from bert_tf.pipelines.corpus.sources import open_corpus


def passages_of(opened, counts=None, unreadable=None):
    """All lines of a corpus; an empty one is where a document ends."""
    counts = Counter() if counts is None else counts
    slices = itertools.chain.from_iterable(opened.units)
    read = [read_slice(x, opened.options, counts, unreadable) for x in slices]
    return [line for passages in read for passage in passages for line in passage.lines]


def documents_of(opened, *arguments):
    runs = itertools.groupby(passages_of(opened, *arguments), key=bool)
    return [list(lines) for has_text, lines in runs if has_text]


def lines_of(inputs, options=None):
    with input_errors():
        batches = read_lines(open_corpus(inputs, options)).as_numpy_iterator()
        return [line for batch in batches for line in batch]
