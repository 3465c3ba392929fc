"""The optimizer, against the original's and against its formula."""

from contextlib import ExitStack
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.schedule import WarmupLinearDecay

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "adam_weight_decay.npz"


def variable_at(path: str, value: np.ndarray) -> keras.Variable:
    """A variable of that path; Keras joins paths from name scopes."""
    *scopes, name = path.split("/")
    with ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        variable = keras.Variable(value, name=name)
    assert variable.path == path
    return variable


@pytest.mark.skipif(not GOLDEN.exists(), reason=f"{GOLDEN.name} is not here")
@pytest.mark.parametrize("compiled", [False, True])
def test_thirty_steps_of_the_original(compiled):
    golden = np.load(GOLDEN)
    variables = [
        variable_at(str(path), golden[f"init_{i}"]) for i, path in enumerate(golden["names"])
    ]
    schedule = WarmupLinearDecay(
        float(golden["learning_rate"]),
        int(golden["num_warmup_steps"]),
        int(golden["num_train_steps"]),
    )
    optimizer = AdamWeightDecay(schedule)
    optimizer.build(variables)
    apply = tf.function(optimizer.apply) if compiled else optimizer.apply
    for step in range(30):
        apply([tf.constant(golden[f"grads_{i}"][step]) for i in range(len(variables))])
        for i, variable in enumerate(variables):
            np.testing.assert_allclose(variable, golden[f"params_{i}"][step], rtol=0, atol=1e-6)
