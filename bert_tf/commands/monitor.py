"""Show training runs in TensorBoard.

  bert-tf monitor runs/pretrained

Shows learning curves and speed during a run or after it; Ctrl-C stops TensorBoard. `bert-tf
monitor runs` shows all runs in a folder side by side.
"""

import threading
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from bert_tf.commands.command import Command, CommandOptions
from bert_tf.commands.progress import console
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.options import PathName, option


@dataclass(kw_only=True)
class Options(CommandOptions):
    """Options of `bert-tf monitor`."""

    run: PathName = option(positional=True, path=True)
    """run directory of `bert-tf pretrain` or `finetune`, or a folder of several."""
    host: str = "localhost"
    """address to listen on; 0.0.0.0 lets other machines connect."""
    port: int = option(6006, at_least=0, at_most=65535)
    """port to listen on; 0 for any free one."""


@dataclass(kw_only=True, repr=False, eq=False)
class MonitorResult(Result):
    """The outcome of `monitor`.

    Attributes:
        folder: the runs shown.
        address: URL of TensorBoard, which runs until this process ends.
    """

    folder: Path
    address: str

    def lines(self) -> list[str]:
        return [f"{self.folder} in TensorBoard: {self.address}"]


def run(options: Options) -> MonitorResult:
    """Shows training runs in TensorBoard, as `bert-tf monitor` does, while this process runs.

    Returns:
        The address of TensorBoard.
    """
    folder = Path(options.run)
    if next(folder.rglob("events.out.tfevents.*"), None) is None:
        raise InputError(f"{folder}: no TensorBoard logs yet: give the directory of a run")
    from tensorboard import program

    board = program.TensorBoard()
    address = ["--host", options.host, "--port", str(options.port)]
    board.configure(argv=["", "--logdir", str(folder), *address])
    try:
        url = board.launch()
    except program.TensorBoardServerException as error:
        raise InputError(f"TensorBoard cannot serve there ({error}): give another --port") from None
    return MonitorResult(folder=folder, address=url)


def show(result: MonitorResult, options: Options) -> None:
    console.print(f"{result}\nCtrl-C ends it")
    if next(result.folder.rglob("*.xplane.pb"), None) is not None and find_spec("xprof") is None:
        console.print("To see the profile there: pip install xprof, and start this command again")
    wait_for_interrupt()


def wait_for_interrupt() -> None:
    """Waits for Ctrl-C; the server runs in a thread of its own."""
    threading.Event().wait()


COMMAND = Command(name="monitor", help=__doc__, options=Options, run=run, show=show)
monitor = COMMAND.function("monitor")
