"""Names of the tasks. Importing this module is quick: `--task` is checked before TensorFlow is."""

import difflib
from importlib.metadata import entry_points
from pathlib import Path

from bert_tf.errors import InputError

NAMES = (
    "classification", "regression", "cola", "sst2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli",
    "stsb", "squad", "squad2", "choice", "swag", "tagging", "conll2003", "conll2003_documents",
    "masked_words", "embedding",
)  # fmt: skip

# What others call them.
_ALSO = {
    "sentiment": "classification",
    "sentiment_analysis": "classification",
    "text_classification": "classification",
    "similarity": "regression",
    "ner": "tagging",
    "token_classification": "tagging",
    "qa": "squad",
    "question_answering": "squad",
    "nli": "mnli",
    "paraphrase": "mrpc",
    "multiple_choice": "choice",
    "mlm": "masked_words",
    "fill_mask": "masked_words",
    "features": "embedding",
}


def check_name(name: str) -> None:
    """Refuses a task that is neither in the table, nor an entry point, nor a Python file.

    Raises:
        InputError: there is no such task; the message proposes the nearest.
    """
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise InputError(f"{name}: no such file: name one that defines TASK with --task")
    elif name not in NAMES and not entry_points(group="bert_tf.tasks", name=name):
        known = [*NAMES, *(point.name for point in entry_points(group="bert_tf.tasks"))]
        asked = name.lower().replace("-", "_")
        near = difflib.get_close_matches(asked, [*known, *_ALSO], n=1)
        hint = f"give one of {', '.join(known)}"
        if near:
            hint = f"did you mean {_ALSO.get(near[0], near[0])}? bert-tf tasks lists all"
        raise InputError(f"there is no task {name!r}: {hint}")
