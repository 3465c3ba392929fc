"""The training state on disk: what a killed run continues from.

One safetensors file a checkpoint, `step-00001000.safetensors`: every variable of the model (its
dropout generators with them) and of the optimizer, and as metadata the step and the best score.
No pickle is read or written.
"""

import json
from pathlib import Path

import keras
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from bert_tf.atomic import replace_file
from bert_tf.errors import InputError


class TrainingState:
    """Saves and restores a compiled model in a folder.

    Args:
        model: a compiled `keras.Model`, built, its optimizer's variables too.
        directory: where the checkpoints are, made when needed.
        keep: how many of the newest checkpoints stay.
        settings: what must not change between a run and its continuation; any JSON.

    Attributes:
        step: training steps done.
        best: the best score met, None before the first evaluation.
    """

    def __init__(
        self, model: keras.Model, directory: str | Path, *, settings: dict, keep: int = 2
    ) -> None:
        self.model = model
        self.directory = Path(directory)
        self.settings = settings
        self.keep = keep
        self.step = 0
        self.best: float | None = None

    def _variables(self) -> list[keras.Variable]:
        optimizer = self.model.optimizer
        if not optimizer.built:
            optimizer.build(self.model.trainable_variables)
        return [*self.model.variables, *optimizer.variables]

    def _files(self) -> list[Path]:
        """Checkpoints, the newest first."""
        return sorted(self.directory.glob("step-*.safetensors"), reverse=True)

    def save(self) -> Path:
        """Writes the state as of `step`; returns the file. Older ones beyond `keep` go."""
        tensors = {
            f"{index:05d}": np.asarray(keras.ops.convert_to_numpy(variable.value))
            for index, variable in enumerate(self._variables())
        }
        metadata = {
            "step": str(self.step),
            "best": json.dumps(self.best),
            "settings": json.dumps(self.settings, sort_keys=True),
        }
        path = self.directory / f"step-{self.step:08d}.safetensors"
        with replace_file(path) as temporary:
            save_file(tensors, temporary, metadata=metadata)
        for old in self._files()[self.keep :]:
            old.unlink()
        return path

    def restore(self) -> bool:
        """Continues from the newest readable checkpoint, if there is one.

        Returns:
            Whether a checkpoint was found; then `step` and `best` are its own.

        Raises:
            InputError: the checkpoint is of a run with other settings, or of another model; or
                there are checkpoints and none can be read.
        """
        damaged = []
        for path in self._files():
            try:
                with safe_open(path, framework="numpy") as file:
                    metadata = file.metadata()
                    tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            except (SafetensorError, OSError) as error:
                damaged.append(f"{path} ({error})")
                continue
            self._refuse_other_settings(path, json.loads(metadata["settings"]))
            self._assign(path, tensors)
            self.step = int(metadata["step"])
            self.best = json.loads(metadata["best"])
            return True
        if damaged:
            raise InputError(
                f"no checkpoint can be read: {'; '.join(damaged)}; delete "
                f"{self.directory} to start again from step 0"
            )
        return False

    def _refuse_other_settings(self, path: Path, saved: dict) -> None:
        changed = [
            f"{name} was {saved.get(name)!r}, is now {self.settings.get(name)!r}"
            for name in sorted(saved.keys() | self.settings.keys())
            if saved.get(name) != self.settings.get(name)
        ]
        if changed:
            raise InputError(
                f"{path} is of a run with other settings ({'; '.join(changed)}): give the same "
                "ones to continue it, or another --output"
            )

    def _assign(self, path: Path, tensors: dict[str, np.ndarray]) -> None:
        variables = self._variables()
        expected = {f"{i:05d}": tuple(v.shape) for i, v in enumerate(variables)}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise InputError(f"{path} holds another model: give another --output")
        for index, variable in enumerate(variables):
            variable.assign(tensors[f"{index:05d}"])
