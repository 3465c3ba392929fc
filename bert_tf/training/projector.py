"""A table of embeddings for TensorBoard's projector."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import keras
import tensorflow as tf

from bert_tf.atomic import replace_file
from bert_tf.training.event_folder import as_system_errors
from bert_tf.training.state import TrainingState
from bert_tf.training.workers import is_chief

_CONFIG = "projector_config.pbtxt"
_METADATA = "metadata.tsv"
# The projector asks for no more rows.
_MOST_ROWS = 100_000


class ProjectorLog(keras.callbacks.Callback):
    """Writes a table after every evaluation, replacing the one before.

    The projector looks for its configuration and a TensorFlow checkpoint in the folders that hold
    events, and reloads a checkpoint whose name has changed (`projector_plugin.py` of TensorBoard
    2.21): the names of checkpoint and tensor hold the step. It would never reload text files.

    Args:
        directory: TensorBoard log folder; the files are in its `train`, beside the events.
        state: training state.
        name: name of the table.
        table: float [rows, width].
        columns: name -> a value to show for each row, the label first. Further rows of the table
            are skipped, and all beyond 100,000.

    Raises:
        OSError: in `on_epoch_end`, if a file cannot be written.
    """

    def __init__(
        self,
        directory: str | Path,
        state: TrainingState,
        *,
        name: str,
        table: keras.Variable,
        columns: Mapping[str, Sequence[object]],
    ) -> None:
        super().__init__()
        self._folder = Path(directory) / "train"
        self._state = state
        self._name = name
        self._table = table
        self._columns = columns
        self._described = False

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Writes the table."""
        if not is_chief(self.model.distribute_strategy):
            return
        if not self._described:
            self._describe()
            self._described = True
        step = self._state.step
        rows = len(next(iter(self._columns.values())))
        checkpoint = f"{self._name}-{step:08d}"
        with as_system_errors(self._folder / checkpoint):
            tf.raw_ops.SaveV2(
                prefix=str(self._folder / checkpoint),
                tensor_names=[f"{self._name}_step_{step}"],
                shape_and_slices=[""],
                tensors=[keras.ops.convert_to_numpy(self._table)[: min(rows, _MOST_ROWS)]],
            )
        # From here on TensorBoard loads the new one.
        with replace_file(self._folder / "checkpoint") as temporary:
            temporary.write_text(f'model_checkpoint_path: "{checkpoint}"\n', encoding="utf-8")
        for path in self._folder.glob(f"{self._name}-*"):
            if path.stem != checkpoint:
                path.unlink()

    def _describe(self) -> None:
        """Writes the columns, and a configuration that names their file for every tensor."""
        rows = itertools.islice(zip(*self._columns.values(), strict=True), _MOST_ROWS)
        lines = ["\t".join(_cell(value) for value in row) for row in (self._columns, *rows)]
        with replace_file(self._folder / _METADATA) as temporary:
            temporary.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
        with replace_file(self._folder / _CONFIG) as temporary:
            temporary.write_text(
                f'embeddings {{ metadata_path: "{_METADATA}" }}\n', encoding="utf-8"
            )


def _cell(value: object) -> str:
    """A value as text, with tabs, line ends and other unprintable characters escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value)
    )
