"""A table of embeddings for TensorBoard's projector."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.atomic import write_text
from bert_tf.training.callbacks import RunCallback
from bert_tf.training.event_folder import as_system_errors

# The projector asks for no more rows.
_MOST_ROWS = 100_000


@dataclass(eq=False)
class ProjectorLog(RunCallback):
    """Writes a table after every evaluation, replacing the one before.

    The projector looks for its configuration and a TensorFlow checkpoint in the folders that hold
    events, and reloads a checkpoint whose name has changed (`projector_plugin.py` of TensorBoard
    2.21): the names of checkpoint and tensor hold the step. It would never reload text files.

    Attributes:
        directory: TensorBoard log folder; the files are in its `train`, beside the events.
        name: name of the table.
        table: float [rows, width].
        columns: name -> a value to show for each row, the label first. Further rows of the table
            are skipped, and all beyond 100,000.

    Raises:
        OSError: in `on_epoch_end`, if a file cannot be written.
    """

    directory: Path
    name: str
    table: keras.Variable
    columns: Mapping[str, Sequence[object]]
    _described: bool = False

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        if not self.is_chief:
            return
        folder = self.directory / "train"
        rows = list(itertools.islice(zip(*self.columns.values(), strict=True), _MOST_ROWS))
        if not self._described:
            lines = ["\t".join(_cell(value) for value in row) for row in (self.columns, *rows)]
            write_text(folder / "metadata.tsv", "\n".join(lines) + "\n")
            config = 'embeddings { metadata_path: "metadata.tsv" }\n'
            write_text(folder / "projector_config.pbtxt", config)
            self._described = True
        step = self.state.step
        checkpoint = f"{self.name}-{step:08d}"
        with as_system_errors(folder / checkpoint):
            tf.raw_ops.SaveV2(
                prefix=str(folder / checkpoint),
                tensor_names=[f"{self.name}_step_{step}"],
                shape_and_slices=[""],
                tensors=[keras.ops.convert_to_numpy(self.table)[: len(rows)]],
            )
        # From here on TensorBoard loads the new one.
        write_text(folder / "checkpoint", f'model_checkpoint_path: "{checkpoint}"\n')
        for path in folder.glob(f"{self.name}-*"):
            if path.stem != checkpoint:
                path.unlink()


def _cell(value: object) -> str:
    """A value as text, with tabs, line ends and other unprintable characters escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)
    )
