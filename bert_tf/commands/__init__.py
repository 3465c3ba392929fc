"""One file a command, each with `Options` and `run`, imported when the command is called."""
