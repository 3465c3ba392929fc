"""The options of the pipelines' tf.data datasets."""

import tensorflow as tf


def dataset_options() -> tf.data.Options:
    options = tf.data.Options()
    options.deterministic = True
    # Closing an iterator waits for the tuner's next wake-up, which may take many seconds.
    options.autotune.enabled = False
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA  # files are read inside flat_map
    )
    return options
