"""Computation of the Keras models in fewer and larger TensorFlow operations."""
