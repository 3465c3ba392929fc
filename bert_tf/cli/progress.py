"""Lines that commands print, and where: see `bert_tf.api.progress`."""

import os
import shutil
import sys
from pathlib import Path

from bert_tf.api.progress import console as console
from bert_tf.api.progress import duration as duration
from bert_tf.api.progress import progress as progress
from bert_tf.api.progress import scores_line as scores_line


def export_line(model: str, options: str = "") -> str:
    """The command that exports a model directory, under the name of its run."""
    folder = Path(model).resolve()
    name = folder.parent.name if folder.name in ("best", "last") else folder.name
    return f"Next: {typed('bert-tf')} export --model {model} --name {name}{options}"


def typed(command: str) -> str:
    """How to type `command` here: with the folder of this Python's commands if PATH lacks it."""
    beside = Path(sys.executable).parent / command
    if shutil.which(command) or not beside.exists():
        return command
    return os.path.relpath(beside)
