"""The models: layers of `bert_tf.networks` composed, written in keras.ops alone."""
