"""Models of rows of tokens for other runtimes, whose graphs have no operations on strings.

The tokenizer stands before such a model, and the names of labels behind it.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from bert_tf.tasks.kinds.multi_label import MultiLabel
from bert_tf.tasks.kinds.rows import alone
from bert_tf.tasks.signatures import DEFAULT, Tensors

LABEL_OUTPUTS = ("label", "labels", "predicted_label")
IS_BLANK = "is_blank"


def row_function(answerer: Any) -> tuple[Callable[..., Tensors], list[tf.TensorSpec]]:
    """The function from rows of tokens [R, T] to answers, and its inputs.

    Labels are numbers, from 1, and 0 where there is none. Of lists of choices [B, n] it takes the
    rows one after the other, and which choices are empty.
    """
    kind: Any = answerer.task.kind
    numbers = range(1, 1 + len(answerer.labels))
    if isinstance(kind, MultiLabel):
        kind = kind.renamed(dict(zip(answerer.labels, numbers, strict=True)))
    model = answerer.model.answering_model()
    numbered = replace(answerer, labels=list(numbers), model=model)
    rows = {name: tf.TensorSpec([None, None], tf.int32, name) for name in model.input}
    specs = list(rows.values())
    if "choices" in kind.signatures(answerer.task)[DEFAULT].inputs:
        specs.append(tf.TensorSpec([None, None], tf.bool, IS_BLANK))

    def answer(*tensors: tf.Tensor) -> Tensors:
        inputs = dict(zip(rows, tensors, strict=False))
        if len(tensors) > len(rows):
            return kind.choose(numbered.predict(alone(inputs)), tensors[-1])
        return kind.row_answers(inputs, numbered, lambda function, x: function(x))

    return answer, specs
