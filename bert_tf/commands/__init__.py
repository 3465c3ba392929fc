"""A file per command: `Options`, `run`, its result and what it prints; `COMMAND` names all of them.

`run` is a Python function, too. Beside the commands stand what several of them share, and what a
command runs that imports TensorFlow. The command `reproduce` is `bert_tf.paper.command`. Importing
a command is quick, as `--help` needs it.
"""
