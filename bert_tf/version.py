"""The versions of bert-tf and of what its runs compute, in a file that imports nothing."""

__version__ = "0.1.0"

# Raise it when equal options come to give other numbers: another order of the data, other masks,
# dropout or initial weights. Runs begun before are then not resumed without --override.
TRAJECTORY = 1
