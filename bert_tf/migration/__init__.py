"""Coming from another BERT in TensorFlow: what its code uses, and whether the numbers agree."""
