"""The models: layers of `bert_tf.layers` composed, written in keras.ops alone."""
