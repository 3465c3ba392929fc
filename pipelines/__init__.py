"""tf.data graphs: corpus to shards, shards to batches, labelled text to batches."""
