"""The version of bert-tf, alone in a file that imports nothing."""

__version__ = "0.1.0"
