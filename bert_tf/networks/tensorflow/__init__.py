"""The interface of the kernels again, in fewer and larger operations for TensorFlow.

`kernels` has the base of `inference` and of `training`, which adds gradients; `positions` drops
padding in both. `int8` has products in 8 bits and their ranges, `cast_weights` casts weights once a
step, `graphs` asks the graph being traced. The losses stand in `losses`, `embedding_losses` and
`vocabulary_loss`.
"""
