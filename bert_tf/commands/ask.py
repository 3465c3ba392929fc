"""Find the texts of an index that are nearest to a question.

  bert-tf ask --index index/ --text "When did the ship leave?"
  bert-tf ask --index index/ --text "a question" "another one" --count 3 --model saved_models/search

Writes one JSON object per question: its texts, the nearest first, with their cosines and places.
"""

import json
from dataclasses import dataclass

from bert_tf.api.progress import progress
from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, option


@dataclass(kw_only=True)
class Options(CheckedOptions):
    """Options of `bert-tf ask`."""

    index: str = option(path=True)
    """folder that bert-tf index wrote."""
    text: list[str] = option(factory=list, first=True)
    """questions."""
    count: int = option(5, at_least=1)
    """number of texts for each question."""
    model: str | None = option(None, path=True, model=True)
    """current path of the index's model; by default the recorded one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text:
            raise InputError("there is no question: give --text")


def run(options: Options) -> None:
    with progress("loading"):
        from bert_tf.trained.search_index import SearchIndex, vectors_of

        index = SearchIndex.read(options.index)
        model, count = options.model or index.model, len(options.text)
        vectors, _ = vectors_of(model, options.text, count, role="query")
        found = [index.nearest(vector, options.count) for vector in vectors]
    for question, nearest in zip(options.text, found, strict=True):
        rows = [{**each._asdict(), "score": round(each.score, 6)} for each in nearest]
        print(json.dumps({"question": question, "texts": rows}, ensure_ascii=False))
