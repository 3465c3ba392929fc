"""Find the texts of an index that are nearest to a question.

  bert-tf ask --index index/ --text "When did the ship leave?"
  bert-tf ask --index index/ --text "a question" "another one" --count 3 --model saved_models/search

Writes one JSON object per question: its texts, the nearest first, with their cosines and places.
"""

import json
from dataclasses import dataclass
from typing import Any

from bert_tf.commands.function import CommandOptions, function
from bert_tf.commands.progress import progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.options import PathName, option


@dataclass(kw_only=True)
class Options(CommandOptions):
    """Options of `bert-tf ask`."""

    index: PathName = option(path=True)
    """folder that bert-tf index wrote."""
    text: list[str] = option(factory=list, first=True)
    """questions."""
    count: int = option(5, at_least=1)
    """number of texts for each question."""
    model: PathName | None = option(None, path=True, model=True)
    """current path of the index's model; by default the recorded one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.text:
            raise InputError("there is no question: give --text")


@dataclass(kw_only=True, repr=False, eq=False)
class AskResult(Result):
    """The outcome of `ask`.

    Attributes:
        answers: for each question a dict of the "question" and its "texts", the nearest first,
            each with its cosine ("score"), its text and its place.
    """

    answers: list[dict[str, Any]]

    def lines(self) -> list[str]:
        return [json.dumps(answer, ensure_ascii=False) for answer in self.answers]


def run(options: Options) -> AskResult:
    """Finds the texts of an index that are nearest to questions, as `bert-tf ask` does.

    Returns:
        The nearest texts of each question.
    """
    with progress("loading", shown=options.shown):
        from bert_tf.commands.search_index import SearchIndex, vectors_of
        from bert_tf.models.opening import open_answerer

        index = SearchIndex.read(options.index)
        name, count = options.model or index.model, len(options.text)
        model = open_answerer(name)
        index.check_model(name, model)
        vectors, _ = vectors_of(model, options.text, count, role="query")
        texts = [index.nearest(vector, options.count) for vector in vectors]
    answers = []
    for question, nearest in zip(options.text, texts, strict=True):
        rows = [{**text._asdict(), "score": round(text.score, 6)} for text in nearest]
        answers.append({"question": question, "texts": rows})
    return AskResult(answers=answers)


def show(result: AskResult, options: Options) -> None:
    print(result)


ask = function("ask", Options, run)
