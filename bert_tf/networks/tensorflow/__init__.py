"""The interface of the kernels again, in fewer and larger operations for TensorFlow."""
