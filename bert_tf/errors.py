"""The exception for mistakes in the user's input."""


class InputError(ValueError):
    """Raised for input that cannot be used; any other exception is a defect of bert-tf.

    The message is one line that names the cause (file, and record or line), what was expected,
    and what to do. The commands print it without a traceback and exit with code 2.
    """
