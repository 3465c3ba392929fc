"""Options that every tf.data dataset of the pipelines has."""

import tensorflow as tf


def dataset_options() -> tf.data.Options:
    """Options of every dataset here: deterministic, parallelism as written, no autotuning.

    Autotuning can keep an iterator from closing for many seconds: tearing it down waits for the
    tuner's next wake-up.
    """
    options = tf.data.Options()
    options.deterministic = True
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA  # files are read inside flat_map
    )
    return options
