"""The commands as Python functions: `bert_tf.finetune`, `evaluate`, `predict` and others.

Each module has a command's work, `run(options)`, which returns a result, and the function that
takes the options by name. The commands print what the result says. Importing a module is quick.
"""
