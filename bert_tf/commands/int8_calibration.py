"""Where the ranges of int8 come from: rows of a task, of which others show what int8 loses.

`bert_tf.networks.tensorflow.int8` computes the ranges from what the layers show for these rows.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bert_tf.errors import InputError
from bert_tf.networks.bert_layer import kernels_of
from bert_tf.networks.tensorflow.int8 import Layers, ProductPlan, Recorder, make_plan
from bert_tf.pipelines.examples.table import Examples
from bert_tf.serving.predictor import answer
from bert_tf.tasks.kinds.sentence_embedding import Embedding
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.splits import hashable, row_keys, split, split_keys
from bert_tf.text.answerer import Answerer
from bert_tf.text.model_facts import run_options

_CALIBRATING = 256  # rows at most that set ranges
_SCORED = 2000  # rows at most that scores are of
_FEW = 32
_BATCH = 32


@dataclass(frozen=True)
class Calibration:
    ranges: Examples  # set the ranges of int8
    scored: Examples  # answered in both types; none of them sets a range

    def remarks(self) -> list[str]:
        count = len(self.ranges)
        if count >= _FEW:
            return []
        few = f"{count} rows are few to set the ranges of int8: give {_FEW} or more"
        return [f"{self.ranges.path}: {few}"]


@dataclass(frozen=True)
class ScoreComparison:
    name: str
    float32: float
    int8: float
    points: float  # lost, of 100
    rows: int

    def __str__(self) -> str:
        scores = f"{self.float32:.4g} in float32, {self.int8:.4g} in int8"
        return f"{self.name} {scores}, on {self.rows:,} rows"


def read_calibration(model: Answerer, path: str | None, directory: str | Path) -> Calibration:
    """Reads the rows that set int8's ranges, and others to score it on.

    They are halves of the file `path`; without one, what the run of the model directory trained and
    validated on.
    """
    options = run_options(directory) if path is None else {}
    source = path or options.get("train") or options.get("data")
    if not source:
        raise InputError(
            f"{directory} names no rows to calibrate int8 with: give --calibration a file of "
            "examples"
        )
    if path is None and not (":" in source or Path(source).exists()):
        raise InputError(
            f"{source}, which {directory}'s run names, is gone: give --calibration a file of "
            "examples"
        )
    ranges = _read(model, source, "train")
    validation = options.get("validation")
    if validation or (path is None and model.task.has(source, "validation")):
        scored = _read(model, validation or source, "validation")
    else:
        kind = model.task.kind
        has_targets = not isinstance(kind, Embedding)
        targets = kind.targets(ranges, model.labels) if has_targets else np.zeros(len(ranges))
        unit, keys = split_keys(kind, model.task, ranges)
        share = options.get("validation_share", 0.5)  # the run's own, of which no row was trained
        train, validation = split(targets, keys, share, options.get("seed", 0), unit=unit)
        scored = ranges.take(validation)
        ranges = ranges.take(train)

    def sample(examples: Examples, most: int) -> Examples:
        order = np.random.default_rng(0).permutation(len(examples))
        return examples.take(np.sort(order[:most]))

    ranges = sample(ranges, _CALIBRATING)
    known = set(row_keys(model.task, ranges))
    scored = scored.take([i for i, x in enumerate(row_keys(model.task, scored)) if x not in known])
    if not (len(ranges) and len(scored)):
        raise InputError(
            f"{source} has too few different rows to set int8's ranges and to score it on others: "
            "give --calibration a file of more"
        )
    return Calibration(ranges, sample(scored, _SCORED))


def _read(model: Answerer, path: str, split: str) -> Examples:
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


def make_plan_for(model: Answerer, calibration: Calibration) -> ProductPlan:
    recorder = Recorder(_blocks(model))
    with kernels_of(model.model, lambda _: recorder):
        function = model.function(model.task.kind.evaluated)
    answer(function, model.evaluated_strings(calibration.ranges), _BATCH)
    plan = make_plan(recorder)
    if not plan.ranges:
        raise InputError(
            "int8 computes none of the model's products well enough: export it in float32 or "
            "bfloat16"
        )
    return plan


def compare(model: Answerer, other: Answerer, calibration: Calibration) -> ScoreComparison:
    """The task's first score of both models, the second one in int8.

    Where thresholds decide and the first score has none, it may be the score of the decisions: the
    one of the two that loses more.
    """
    examples = calibration.scored
    if isinstance(model.task.kind, Embedding):
        one, two = (x.answers(examples, _BATCH).answers["mean"] for x in (model, other))
        norms = np.linalg.norm(one, axis=-1) * np.linalg.norm(two, axis=-1)
        cosine = float(np.mean(np.sum(one * two, -1) / np.maximum(norms, 1e-30)))
        return ScoreComparison("cosine", 1.0, cosine, 100 * (1 - cosine), len(examples))
    kind = model.task.kind
    names = {kind.score_names(model.task, model.labels)[0], *kind.tuned_settings.values()}
    exact, rough = (x.evaluate(examples, _BATCH).scores for x in (model, other))
    comparisons = []
    for name in sorted(names & exact.keys()):
        first = exact[name]
        second = rough[name]
        if first is None or second is None:
            raise InputError(f"{examples.path}: {name} is undefined for these rows: give others")
        points = (first - second) * (1 if isinstance(kind, Span) else 100)
        comparisons.append(ScoreComparison(name, first, second, points, len(examples)))
    return max(comparisons, key=lambda comparison: comparison.points)


def _blocks(model: Answerer) -> list[Layers]:
    """The layers with int8 products; InputError if the model has none, or other weights."""
    encoder = getattr(model.model, "encoder", model.model)
    if encoder.config.has_feature_encoder or not encoder.has_attention:
        raise InputError(
            "int8 is for Transformers that answer by themselves, not for LSTMs or heads on "
            "features: give --precision float32 or bfloat16"
        )
    blocks = [block for tower in encoder.towers() for block in tower.blocks]
    for weight in (weight for block in blocks for weight in block.weights):
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
