from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered


@pytest.fixture(scope="session")
def answered() -> Callable[..., Answered]:
    """`answered(task, columns, answers, labels)`: `answers` may be a model's outputs, too.

    The examples are those of d.tsv, from line 2.
    """

    def make(task, columns, answers, labels=()) -> Answered:
        count = len(next(iter(columns.values())))
        examples = Examples("d.tsv", [*range(2, 2 + count)], columns)
        if not isinstance(answers, dict):
            outputs = tf.constant(np.array(answers), tf.float32)
            answers = task.kind.answers(outputs, list(labels))
        answers = {name: np.asarray(values) for name, values in answers.items()}
        return Answered(task, examples, answers, labels)

    return make
