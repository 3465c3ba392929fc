"""The processes of one run: what they agree on, how they leave, and who writes where.

Every function here is to be called by all the workers of a run, in the same order.
"""

import errno
import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from bert_tf.atomic import hold_output
from bert_tf.errors import InputError
from bert_tf.training.preemption import Preempted

_LOCK = ".lock"
# File systems without locks, some network ones among them.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def has_workers(strategy: tf.distribute.Strategy) -> bool:
    """Whether the run may have several processes."""
    return isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process is the one that writes files and tells the user."""
    return strategy.extended.should_checkpoint


def from_all_replicas(strategy: tf.distribute.Strategy, number: int) -> list[int]:
    """Tells all workers a whole number of this one, and waits for theirs.

    Args:
        strategy: of the run.
        number: of this worker; fits in 64 bits.

    Returns:
        The numbers of all, as many times each as the worker has replicas, in their order.
    """
    if not has_workers(strategy):
        return [number] * strategy.num_replicas_in_sync

    def own() -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        place = tf.one_hot(
            replica.replica_id_in_sync_group, strategy.num_replicas_in_sync, dtype=tf.int64
        )
        return replica.all_reduce(tf.distribute.ReduceOp.SUM, place * number)

    @tf.function
    @tf.autograph.experimental.do_not_convert
    def numbers() -> tf.Tensor:
        return strategy.experimental_local_results(strategy.run(own))[0]

    return numbers().numpy().tolist()


def meet(strategy: tf.distribute.Strategy) -> None:
    """Waits until every worker has come here.

    One that leaves while others work on is taken for lost by these.
    """
    from_all_replicas(strategy, 0)


@contextmanager
def lost_worker_errors() -> Iterator[None]:
    """Tells in one line that another worker of the run has gone.

    The collective operations that wait for it end with `UnavailableError`: at once where its
    connection breaks, else when its heartbeats have been missing for some 10 s.

    Raises:
        Preempted: in place of that error: started again, all workers, the run goes on.
    """
    try:
        yield
    except tf.errors.UnavailableError as error:
        if "ollective" not in str(error):  # a data service, for one
            raise
        raise Preempted(
            "another worker of the run has ended: start the same command again on all workers, "
            "it goes on from the last checkpoint"
        ) from error


@contextmanager
def hold_run_directory(directory: str | Path, strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Keeps a run directory for one run alone while it is entered.

    The first worker holds a lock of the operating system (`flock`) on a file there, which goes
    with the process, however that ends. A file system without such locks is used without one.
    What a process that was killed had begun to write there is removed.

    Args:
        directory: made if it does not exist.
        strategy: of the run.

    Raises:
        InputError: another run holds it; in all the workers.
    """
    if not is_chief(strategy):
        _check_held(any(from_all_replicas(strategy, 0)), directory)
        yield
        return
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / _LOCK).open("w") as file:
        is_held = False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_held = True
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        _check_held(any(from_all_replicas(strategy, int(is_held))), directory)
        with hold_output(directory):
            yield


def _check_held(is_held: bool, directory: str | Path) -> None:
    if is_held:
        raise InputError(
            f"{directory}: another process is training there: wait for its end, or give another "
            "--output"
        )


def check_same_step(strategy: tf.distribute.Strategy, step: int) -> None:
    """Refuses a run whose workers would continue from different checkpoints.

    Raises:
        InputError: in all the workers.
    """
    steps = from_all_replicas(strategy, step)
    if len(set(steps)) > 1:
        raise InputError(
            f"the workers found checkpoints of different steps ({', '.join(map(str, steps))}): "
            "--output must be one folder on a file system that all of them see"
        )
