"""Models on disk: the model directory, and the tables of names that other formats use."""
