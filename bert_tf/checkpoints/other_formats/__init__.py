"""Checkpoints in the formats of other libraries."""
