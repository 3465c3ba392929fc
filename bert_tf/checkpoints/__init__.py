"""Models on disk: the model directory, and other formats."""
