"""The interface of the kernels again, in fewer and larger operations for TensorFlow.

`inference` computes tokens alone, without padding, in training, too (`TokenPositions`). `training`
adds gradients, `int8` products in 8 bits and their ranges. The losses stand in `losses` and
`vocabulary_loss`, `cast_weights` casts weights once a step, `graphs` asks the graph being traced.
"""
