"""Predictions from an exported SavedModel, as a server would give them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Loading the SavedModel needs the tokenizer's two TF Text ops registered.
import tensorflow as tf
import tensorflow_text  # noqa: F401

from bert_tf.errors import InputError
from bert_tf.serving.export import versions


class Predictor:
    """The `serving_default` signature of a SavedModel.

    Args:
        saved_model: `saved_models/<name>` (its newest version) or one version's folder.

    Raises:
        InputError: no SavedModel is there, or it cannot be read.
    """

    def __init__(self, saved_model: str | Path) -> None:
        directory = Path(saved_model)
        if not (directory / "saved_model.pb").is_file():
            available = versions(directory)
            if not available:
                raise InputError(
                    f"{directory} holds no SavedModel: give saved_models/<name>, as "
                    "`bert-tf export` writes it"
                )
            directory = directory / str(available[-1])
        self.directory = directory
        try:
            self._loaded = tf.saved_model.load(str(directory))
            self._signature = self._loaded.signatures["serving_default"]
        except (OSError, KeyError, tf.errors.OpError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise InputError(
                f"{directory} cannot be loaded ({reason}): export the model again"
            ) from error
        self.inputs = sorted(self._signature.structured_input_signature[1])

    def __call__(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        batch_size: int = 32,
    ) -> Iterator[dict[str, Any]]:
        """Yields one prediction a text, in order.

        Args:
            texts: raw strings.
            pairs: as many second strings, for a model of pairs.
            batch_size: strings the signature is given at once.

        Yields:
            `label` (str), `probability` (float) and `probabilities` (label -> float, the most
            probable first).

        Raises:
            InputError: the model takes pairs and got none, or the other way round.
        """
        if (pairs is not None) != ("text_pair" in self.inputs):
            wanted = "pairs of strings" if pairs is None else "single strings"
            raise InputError(f"the model in {self.directory} takes {wanted}")
        for start in range(0, len(texts), batch_size):
            given = {"text": tf.constant(list(texts[start : start + batch_size]))}
            if pairs is not None:
                given["text_pair"] = tf.constant(list(pairs[start : start + batch_size]))
            outputs = {name: value.numpy() for name, value in self._signature(**given).items()}
            for labels, probabilities in zip(
                outputs["labels"], outputs["probabilities"], strict=True
            ):
                named = [label.decode() for label in labels]
                yield {
                    "label": named[0],
                    "probability": float(probabilities[0]),
                    "probabilities": dict(zip(named, map(float, probabilities), strict=True)),
                }
