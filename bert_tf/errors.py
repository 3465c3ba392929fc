"""The error a user can mend."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message is one line that names the cause (file, and record or line), what was expected,
    and what to do. The commands print it and exit with code 2; any other exception is a defect
    of bert-tf and shows its traceback.
    """
