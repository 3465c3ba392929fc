"""What the layers are made of: in keras.ops, and for TensorFlow in fewer and larger operations."""
