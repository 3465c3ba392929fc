"""A file per command: `Options`, `run`, its result and what it prints; `run` is a function, too.

Beside them stand what several commands share, and what a command runs that imports TensorFlow. The
command `reproduce` is `bert_tf.paper.command`. Importing a command is quick, as `--help` needs it.
"""
