"""Fine-tuned models with int8 products: the rows that calibrate them, and what they lose."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from bert_tf.errors import InputError
from bert_tf.models.feature_encoder import FeatureEncoder
from bert_tf.primitives.int8 import Layers, ProductPlan, Recorder, make_plan
from bert_tf.primitives.on_tensorflow import inferring_with
from bert_tf.serving.predictor import answer
from bert_tf.tasks.kinds.kind import hashable
from bert_tf.tasks.kinds.sentence_embedding import Embedding
from bert_tf.trained.fine_tuned import FineTuned
from bert_tf.trained.model_facts import run_options
from pipelines.examples.labelled_text import Examples

_CALIBRATING, _SCORED = 256, 2000  # rows at most that set ranges, and that scores are of
_FEW = 32
_BATCH = 32


@dataclass(frozen=True)
class Calibration:
    """Rows of a model's task."""

    ranges: Examples  # set the ranges of int8
    scored: Examples  # answered in both types

    def remarks(self) -> list[str]:
        if (count := len(self.ranges)) >= _FEW:
            return []
        return [f"{self.ranges.path}: {count} rows are few to calibrate int8; give {_FEW} or more"]


@dataclass(frozen=True)
class ScoreComparison:
    """A score of a model in float32 and in int8."""

    name: str
    float32: float
    int8: float
    points: float  # lost, of 100
    rows: int

    def __str__(self) -> str:
        return (
            f"{self.name} {self.float32:.4g} in float32, {self.int8:.4g} in int8, on {self.rows:,} "
            "rows"
        )


def read_calibration(model: FineTuned, given: str | None, directory: str | Path) -> Calibration:
    """The rows of `given`, or those that the run of a model directory was trained with."""
    if given is not None:
        scored = examples = _read(model, given, "train")
    else:
        examples, scored = _of_run(model, directory)
    return Calibration(_some(examples, _CALIBRATING), _some(scored, _SCORED))


def _of_run(model: FineTuned, directory: str | Path) -> tuple[Examples, Examples]:
    options = run_options(directory)
    source = options.get("train") or options.get("data")
    if not source:
        raise InputError(
            f"{directory} names no rows to calibrate int8 with: give --calibration a file of "
            "labelled examples"
        )
    if not (":" in source or Path(source).exists()):
        raise InputError(
            f"{source}, which {directory}'s run names, is gone: give --calibration a file of "
            "labelled examples"
        )
    examples = _read(model, source, "train")
    validation = options.get("validation") or source
    is_there = options.get("validation") or model.task.has(source, "validation")
    return examples, _read(model, validation, "validation") if is_there else examples


def _read(model: FineTuned, path: str, split: str) -> Examples:
    if isinstance(model.task.kind, Embedding):
        return model.reader(None, path).read(path, split, labelled=False)
    examples = model.task.read(path, split)
    model.task.kind.targets(examples, model.labels)  # refuses rows of another task
    labels = {hashable(label) for label in examples.columns.get("label", ())}
    if model.labels and len(labels) == 1 and len(examples) > 1:
        raise InputError(
            f"{examples.path}: all {len(examples)} rows have the label {labels.pop()!r}: give rows "
            "of all labels"
        )
    return examples


def _some(examples: Examples, most: int) -> Examples:
    """A random choice of the examples, where there are many."""
    order = np.random.default_rng(0).permutation(len(examples))
    return examples.take(np.sort(order[:most]))


def make_plan_for(model: FineTuned, calibration: Calibration) -> ProductPlan:
    recorder = Recorder(_blocks(model))
    with inferring_with(recorder):
        function = model.function(model.task.kind.evaluated)
    answer(function, model.evaluated_strings(calibration.ranges), _BATCH)
    plan = make_plan(recorder)
    if not plan.ranges:
        raise InputError(
            "int8 computes none of the model's products well enough: export it in float32 or "
            "bfloat16"
        )
    return plan


def compare(model: FineTuned, other: FineTuned, calibration: Calibration) -> ScoreComparison:
    """The task's first score of both, the second one in int8."""
    examples = calibration.scored
    if isinstance(model.task.kind, Embedding):
        one, two = (each.answers(examples, _BATCH).answers["mean"] for each in (model, other))
        norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)
        cosine = float(np.mean(np.sum(one * two, -1) / np.maximum(norms, 1e-30)))
        return ScoreComparison("cosine", 1.0, cosine, 100 * (1 - cosine), len(examples))
    name = model.task.kind.score_names(model.task, model.labels)[0]
    first, second = (each.evaluate(examples, _BATCH).scores[name] for each in (model, other))
    if first is None or second is None:
        raise InputError(f"{examples.path}: {name} is undefined for these rows: give others")
    points = (first - second) * (1 if model.task.kind.scores_are_percentages else 100)
    return ScoreComparison(name, first, second, points, len(examples))


def _blocks(model: FineTuned) -> list[Layers]:
    """The layers with int8 products; InputError if the model has none, or other weights."""
    encoder = getattr(model.model, "encoder", model.model)
    is_recurrent = model.model.config.attention_direction == "recurrent"
    if is_recurrent or isinstance(encoder, FeatureEncoder):
        raise InputError(
            "int8 is for Transformers that answer by themselves, not for LSTMs or heads on "
            "features: give --precision float32 or bfloat16"
        )
    if keras.backend.backend() != "tensorflow":
        raise InputError("int8 needs TensorFlow: set KERAS_BACKEND=tensorflow")
    blocks = [block for tower in encoder.towers() for block in tower.blocks]
    weights: Sequence[Any] = [weight for block in blocks for weight in block.weights]
    for weight in weights:
        if not np.isfinite(weight.numpy()).all():
            raise InputError(
                f"{weight.path} has weights that are not finite: train the model again, or export "
                "another checkpoint"
            )
    return [
        Layers(
            (block.attention.query, block.attention.key, block.attention.value),
            block.attention.output_dense,
            block.feed_forward.intermediate,
            block.feed_forward.output_dense,
        )
        for block in blocks
    ]
