"""The table of symbols: what other libraries' users write, and what to write here.

symbols.tsv has rows of: library, form, symbol (a glob), what it is, what to write instead, or why
there is no equivalent. Libraries and symbols may be several, with a "|" between them. The first
symbol that fits counts. A form is what a symbol is in the code: name (of a module, imported),
method, attribute, key or position (of a value: its class, as values.py describes it, or its name in
small letters; then a point and the name or number), argument (name=value, perhaps with "class("
before it), text (a string constant), number, call (of a value, or one that lacks something),
override (a method of a subclass, after its base and a point), script (a file that is run), flag (of
a script) or setting (key in a YAML file).
"""

import csv
import functools
import itertools
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

LIBRARIES = {
    "transformers": "transformers",
    "keras_hub": "KerasHub",
    "official": "Model Garden",
    "tensorflow_hub": "TF Hub",
    "tensorflow_text": "TF Text",
    "tf_keras": "Keras 2",
    "keras": "Keras 2",
    "tensorflow_addons": "TensorFlow Addons",
    "tokenizers": "tokenizers",
    "tensorflow": "TensorFlow 1",
    "original": "the original's code",
    "keras_bert": "keras-bert, bert4keras",
    "ktrain": "ktrain",
    "sentence_transformers": "sentence-transformers",
    "simpletransformers": "Simple Transformers",
    "bert_serving": "clip-as-service",
    "onnx": "ONNX converters",
    "*": "the environment",
}
_TABLE = Path(__file__).with_name("symbols.tsv")


@dataclass(frozen=True)
class Symbol:
    library: str  # key of `LIBRARIES`
    form: str
    symbol: str
    what: str
    instead: str  # what to write here; empty without an equivalent
    because: str  # why there is no equivalent; empty with one


@functools.cache
def table() -> dict[tuple[str, str], list[Symbol]]:
    """Library and form -> the rows, in order."""
    rows: dict[tuple[str, str], list[Symbol]] = {}
    with _TABLE.open(encoding="utf-8", newline="") as file:
        for values in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            names = (values.pop(name).split("|") for name in ("library", "symbol"))
            for library, symbol in itertools.product(*names):
                row = Symbol(library=library, symbol=symbol, **values)
                rows.setdefault((library, row.form), []).append(row)
    return rows


@functools.cache
def find(library: str, form: str, symbol: str) -> Symbol | None:
    rows = table().get((library, form), [])
    return next((row for row in rows if fnmatchcase(symbol, row.symbol)), None)
