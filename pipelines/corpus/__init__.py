"""Text in: files and datasets, read as documents of sentences."""
