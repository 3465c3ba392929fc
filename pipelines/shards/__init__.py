"""Pre-training instances on disk: written, checked, and read as batches."""
