"""The processes of one run: what they agree on, how they end, and which one writes.

All workers of a run must call these functions, in the same order.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.files.atomic import hold_output
from bert_tf.files.lock import locked
from bert_tf.files.owners import Layout, Mark
from bert_tf.training.preemption import Preempted

# Why the chief cannot use a folder, for all workers.
_HELD = 1
_REFUSED = 2
_LOCK = ".lock"


def has_workers(strategy: tf.distribute.Strategy) -> bool:
    """Whether a run may have several processes."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes files and reports to the user."""
    return strategy.extended.should_checkpoint


def from_all_replicas(strategy: tf.distribute.Strategy, number: int) -> list[int]:
    """The whole numbers of up to 64 bits that the workers give, for all replicas in their order."""
    if not has_workers(strategy):
        return [number] * strategy.num_replicas_in_sync
    return _exchange(strategy)(tf.constant(number, tf.int64)).numpy().tolist()


@lru_cache(maxsize=1)
def _exchange(strategy: tf.distribute.Strategy) -> tf.types.experimental.PolymorphicFunction:
    """A function, traced once, from this worker's number () to all replicas' numbers (R,)."""

    def numbers_of_replica(number: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        count = strategy.num_replicas_in_sync
        position = tf.one_hot(replica.replica_id_in_sync_group, count, dtype=tf.int64)
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, position * number)

    @tf.function
    @tf.autograph.experimental.do_not_convert
    def exchange(number: tf.Tensor) -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(numbers_of_replica, [number]))[0]

    return exchange


def meet(strategy: tf.distribute.Strategy) -> None:
    """Waits for all workers: the others take one that leaves early for lost."""
    from_all_replicas(strategy, 0)


def leave(strategy: tf.distribute.Strategy) -> None:
    """Waits until all workers have what they last exchanged, so that this process may end."""
    with suppress(tf.errors.UnavailableError):  # of one that left after all had their results
        meet(strategy)


class StopFlag:
    """How one of several workers tells the others to stop: each step sums a number of each."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        self._strategy = strategy
        # Not part of the training state: a plain variable, of which each worker sets its own copy.
        self.asked = tf.Variable(0.0, trainable=False, name="stop_asked")

    def ask(self) -> None:
        """Makes the sum positive from the next step on."""
        for copy in self._strategy.experimental_local_results(self.asked):
            copy.assign(1.0)


@contextmanager
def lost_worker_errors() -> Iterator[None]:
    """Raises Preempted in place of the error after another worker of the run has gone."""
    try:
        yield
    except tf.errors.UnavailableError as error:
        if "ollective" not in str(error):  # a data service, for one
            raise
        raise Preempted(
            "another worker of the run has ended: run the same command again on all workers to "
            "resume from the last checkpoint"
        ) from error


@contextmanager
def hold_run_directory(
    directory: str | Path, strategy: tf.distribute.Strategy, layout: Layout | None = None
) -> Iterator[Mark | None]:
    """Makes and locks a run directory, and removes what a killed process left.

    Yields the mark of the folder on the chief, given a `layout`. The chief's lock ends with
    block or process. Raises InputError in all workers if it is held, or the folder is another's.
    """
    with ExitStack() as stack:
        mark = None
        fault = 0
        message = f"{directory}: the chief cannot use it: see its error"
        if is_chief(strategy):
            lock = Path(directory) / _LOCK
            lock.parent.mkdir(parents=True, exist_ok=True)
            lock.touch()
            if stack.enter_context(locked(lock)) is False:
                fault = _HELD
            else:
                try:
                    mark = None if layout is None else Mark.of(directory, layout)
                except InputError as error:
                    fault = _REFUSED
                    message = str(error)
        if fault := max(from_all_replicas(strategy, fault)):
            leave(strategy)
            if fault == _HELD:
                message = (
                    f"{directory}: another process is training there: wait until it ends, or give "
                    "another --output"
                )
            raise InputError(message)
        if is_chief(strategy):
            stack.enter_context(hold_output(directory, mark))
        yield mark


def check_same_step(strategy: tf.distribute.Strategy, step: int) -> None:
    """Raises InputError in all workers if they would resume from different checkpoints."""
    steps = from_all_replicas(strategy, step)
    if len(set(steps)) > 1:
        leave(strategy)
        raise InputError(
            f"the workers found checkpoints of different steps ({', '.join(map(str, steps))}): "
            "give --output a folder on a file system that all of them share"
        )
