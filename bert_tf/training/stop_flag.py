"""How one of several workers tells the others to stop."""

import tensorflow as tf


class StopFlag:
    """A number of each worker, summed over the workers in a vector that a step sends anyway.

    All workers see the same sum after the same step, so all can stop there.
    """

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        # Not part of the training state: a plain variable, of which each worker sets its own copy.
        self._asked = tf.Variable(0.0, trainable=False, name="stop_asked")

    def ask(self) -> None:
        """Has all workers see a sum above 0 from their next step on."""
        for own in self._strategy.experimental_local_results(self._asked):
            own.assign(1.0)

    def appended_to(self, sums: tf.Tensor) -> tf.Tensor:
        """The vector to sum over the workers, with this worker's number at its end."""
        return tf.concat([sums, [self._asked]], 0)
