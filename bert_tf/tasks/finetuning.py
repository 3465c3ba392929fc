"""Fine-tuning, for every kind of task."""

import functools
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import copytree
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.atomic import replace_directory, replace_file
from bert_tf.checkpoints.formats import CONFIG, check_is_model_directory
from bert_tf.checkpoints.model_directory import load_model
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.cost import classification_flops
from bert_tf.options import identity
from bert_tf.tasks.fine_tuned import Evaluation, FineTuned
from bert_tf.tasks.kind import Dataset
from bert_tf.tasks.options import FinetuningOptions, save_config, steps_to_profile
from bert_tf.tasks.table import find_task
from bert_tf.tasks.training_setup import make_plan, make_run, prepare
from bert_tf.tasks.watching import rates, watch_run
from bert_tf.tasks.word_frequencies import plateau_notice
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.dry_run import dry_run
from bert_tf.training.loop import TrainingResult, check_steps_per_execution
from bert_tf.training.plan import Phase
from bert_tf.training.run import Run
from bert_tf.training.strategy import check_batch_size, distribute_batches
from bert_tf.training.trainer import Trainer
from pipelines.examples.batches import example_batches
from pipelines.examples.labelled_text import Examples

# Enough batches to measure the mean length of examples.
_SAMPLED_BATCHES = 8

Report = Callable[[int, str, dict[str, float]], None]


@dataclass(frozen=True)
class FinetuningResult:
    """Outcome of a fine-tuning run.

    Attributes:
        training: steps and their time.
        best_by: name of the score that chooses the best model.
        evaluation: evaluation of the best model on the validation examples; None but on the chief
            worker.
        train_examples: number of training examples.
    """

    training: TrainingResult
    best_by: str
    evaluation: Evaluation | None
    train_examples: int


def finetune(
    options: FinetuningOptions,
    report: Report,
    notice: Callable[[str], object] = print,
    planned: Callable[[int], object] = lambda steps: None,
    on_step: Callable[[int], object] = lambda step: None,
) -> FinetuningResult | None:
    """Fine-tunes a model; the run directory is `options.output`.

    `best/` there is the model with the best score on the validation examples (the first of them in
    a tie), with its predictions and `metrics.json`, both computed in float32.

    Args:
        options: options of the command.
        report: called with (step, "train" or "held_out", scalars) for each line logged.
        notice: called with lines for the user.
        planned: called with the total number of steps, before the first.
        on_step: called with each step.

    Returns:
        The outcome; None for a dry run.

    Raises:
        InputError: the data, the model or the options cannot be used.
        Preempted: the run was stopped, or another worker has gone.
    """
    # First of all: several workers have to connect before TensorFlow runs an op.
    with make_run(options, notice, [options.model, options.train, options.validation]) as run:
        return _finetune(run, options, report, planned, on_step)


def _finetune(
    run: Run,
    options: FinetuningOptions,
    report: Report,
    planned: Callable[[int], object],
    on_step: Callable[[int], object],
) -> FinetuningResult | None:
    task = find_task(options.task or "classification").with_settings(vars(options))
    size = options.batch_size or task.batch_size
    check_batch_size(size, run.strategy, options.gradient_accumulation_steps)
    epochs = options.epochs or task.epochs
    learning_rate = options.learning_rate or task.learning_rate
    options = replace(
        options, task=task.name, max_length=task.max_length, epochs=epochs, batch_size=size,
        learning_rate=learning_rate,
    )  # fmt: skip
    data = _data(task, options)
    best_by = _best_by(task, data.labels, options.best_by)
    steps_per_epoch = math.ceil(len(data.train.arrays[0]) / size)
    total_steps = min(steps_per_epoch * epochs, options.max_steps or sys.maxsize)
    evaluate_every = options.evaluate_every or steps_per_epoch
    check_steps_per_execution(options.steps_per_execution, evaluate_every, [total_steps])

    tuned = _new_model(run, task, options, data)
    trainer = _prepare(run, tuned, options, data, learning_rate, total_steps)
    train = functools.partial(data.train.batches, tuned, seed=options.seed)
    watch_run(
        run,
        tuned.model,
        lambda: train(size),
        values={**identity(options), "model": options.model, "train": options.train},
        score=f"best_{best_by}",
        total_steps=total_steps,
        histograms_every=options.histograms_every,
        profile=steps_to_profile(options.profile),
    )
    phase = _phase(run, tuned, data, train, size, total_steps)
    lines = [
        f"{run.devices}: {data}, {total_steps:,} steps of {size}",
        *data.doubts,
        *filter(None, [plateau_notice(options.model)]),
    ]
    if options.dry_run:
        lines += dry_run(trainer, [phase])
    else:
        run.open(override=options.override)
    for line in lines:
        run.notice(line)
    if options.dry_run:
        return None
    if run.is_chief:
        save_config(options, run.directory)
    planned(total_steps)
    training = run.train(
        [phase],
        plan=make_plan(
            options,
            batch_size=size,
            evaluate_every=evaluate_every,
            best_by=best_by,
            larger_is_better=True,
        ),
        save_model=tuned.save,
        report=report,
        on_step=on_step,
    )
    evaluation = None
    if run.is_chief:
        if training.best is None:
            run.notice(f"{best_by} was undefined at every evaluation: best/ is the last model")
            tuned.save(run.directory / "best")
        evaluation = _evaluate_best(run.directory / "best", data.validation, size)
    run.meet()
    return FinetuningResult(training, best_by, evaluation, len(data.examples))


class _Rows(NamedTuple):
    """What batches are made of: columns of R rows; targets [R, ...], and weights if there are."""

    columns: Mapping[str, Sequence[Any]]
    arrays: list[np.ndarray]

    def batches(
        self, tuned: FineTuned, size: int, worker: int = 0, workers: int = 1, **order: int
    ) -> tf.data.Dataset:
        return example_batches(
            self.columns, tuned.batch, size, targets=self.arrays, worker=worker,
            num_workers=workers, **order,
        )  # fmt: skip


class _Data(NamedTuple):
    """What a run trains and validates on, and what looks wrong with it."""

    examples: Examples
    validation: Examples
    labels: list[str]
    train: _Rows
    held_out: _Rows
    doubts: list[str]

    def __str__(self) -> str:
        labels = f", {len(self.labels)} labels ({', '.join(self.labels)[:60]})" * bool(self.labels)
        count, held_out = len(self.examples), len(self.validation)
        return f"{count:,} training and {held_out:,} validation examples{labels}"


def _data(task: Dataset, options: FinetuningOptions) -> _Data:
    kind = task.kind
    examples, validation, doubts = _files(task, options)
    labels = kind.label_names(task, examples)
    check_is_model_directory(Path(options.model))
    config = BertConfig.from_json(Path(options.model) / CONFIG)
    if config.labels and sorted(config.labels) == sorted(labels):
        labels = config.labels  # the model's head is kept, with its order
    if validation is None:
        kept, aside = split(kind.targets(examples, labels), options.validation_share, options.seed)
        if not len(kept):
            raise InputError(
                f"{examples.path}: {len(examples)} examples are too few to set a share of "
                f"{options.validation_share} aside: give --validation a file"
            )
        examples, validation = examples.take(kept), examples.take(aside)
    tokenizer = BertTokenizer.from_directory(options.model)
    columns, targets = kind.training_rows(task, examples, labels, tokenizer)
    weights = [kind.weights(targets)] if options.class_weights else []
    held_out, held_out_targets = kind.training_rows(task, validation, labels, tokenizer)
    return _Data(
        examples,
        validation,
        labels,
        train=_Rows(columns, [targets, *weights]),
        held_out=_Rows(held_out, [held_out_targets]),
        doubts=doubts,
    )


def _files(
    task: Dataset, options: FinetuningOptions
) -> tuple[Examples, Examples | None, list[str]]:
    """Training examples, validation examples if they have a file, and what looks wrong."""
    examples = task.kind.read(task, task.file(options.train, "train"))
    doubts = task.kind.doubts(examples)
    published = [Path(options.train) / name for name in task.files.get("validation", ())]
    if options.validation:
        published = [task.file(options.validation, "validation")]
    for path in published:
        if options.validation or path.is_file():
            validation = task.kind.read(task, path)
            return examples, validation, doubts + validation.remarks()
    return examples, None, doubts


def _new_model(run: Run, task: Dataset, options: FinetuningOptions, data: _Data) -> FineTuned:
    head = {**task.kind.head(data.labels), "seed": options.seed}
    with run.strategy.scope():
        if options.from_scratch:
            config = BertConfig.from_json(Path(options.model) / CONFIG)
            model = task.kind.model_class(config, **head)
        else:
            model = load_model(options.model, task.kind.model_class, allow_new_head=True, **head)
    return FineTuned(task, model, BertTokenizer.from_directory(options.model), data.labels)


def _prepare(
    run: Run, tuned: FineTuned, options: FinetuningOptions, data: _Data, learning_rate: float,
    total_steps: int,
) -> Trainer:  # fmt: skip
    kind, tokenizer = tuned.task.kind, tuned.tokenizer
    return prepare(
        run,
        tuned.model,
        options,
        learning_rate=learning_rate,
        total_steps=total_steps,
        warmup_steps=round(total_steps * options.warmup_share),
        loss=kind.loss(label_smoothing=options.label_smoothing),
        metrics=kind.metrics,
        settings={
            "config": tuned.model.config.to_dict(),
            "labels": list(tuned.labels),
            **kind.settings(),
            "train": data.examples.fingerprint(),
            "validation": data.validation.fingerprint(),
            "tokenizer": {"vocabulary": tokenizer.vocabulary_hash, **tokenizer.settings},
        },
    )


def _phase(
    run: Run,
    tuned: FineTuned,
    data: _Data,
    train: Callable[..., tf.data.Dataset],
    size: int,
    total_steps: int,
) -> Phase:
    """All steps of the run; `train` makes batches of the training rows."""
    model = tuned.model
    held_out = functools.partial(data.held_out.batches, tuned)
    tokens, length = _example_size(train(size).take(_SAMPLED_BATCHES))
    flops = classification_flops(model.config, length=length, classes=len(tuned.labels) or 1)

    def evaluate() -> dict[str, float]:
        scores = tuned.evaluate(data.validation, size).scores
        return {n: v for n, v in scores.items() if n != "examples" and v is not None}

    return Phase(
        until=total_steps,
        batches=lambda step: distribute_batches(
            functools.partial(train, start_step=step), run.strategy, size
        ),
        held_out=distribute_batches(held_out, run.strategy, size),
        evaluate=evaluate,
        rates=rates(run.strategy, model.encoder.compute_dtype, tokens=tokens, flops=flops),
    )


def _evaluate_best(folder: Path, validation: Examples, size: int) -> Evaluation:
    """Evaluates the best model as `bert-tf evaluate` does, in float32, and writes the outcome."""
    best = FineTuned.from_directory(folder)
    evaluation = best.evaluate(validation, size)
    chosen = best.tuned(evaluation)
    if chosen is not best:
        chosen.save(folder)
        evaluation = chosen.evaluate(validation, size)
    chosen.write(evaluation, folder)
    return evaluation


def split(targets: np.ndarray, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws a stratified share of the examples: every class (or range of values) gives its part.

    Args:
        targets: numbers [E]; arrays [E, ...] give no classes.
        share: share to set aside, at least one example.
        seed: random seed.

    Returns:
        The indices that stay and the indices set aside.
    """
    count = len(targets)
    order = np.random.default_rng(seed).permutation(count)
    if targets.ndim == 1:
        order = order[np.argsort(targets[order], kind="stable")]  # shuffled within each class
    number = min(count, max(1, round(count * share)))
    places = ((np.arange(number) + 0.5) * count / number).astype(int)
    return np.sort(np.delete(order, places)), np.sort(order[places])


def _best_by(task: Dataset, labels: list[str], asked: str | None) -> str:
    names = task.kind.score_names(task, labels)
    if asked is not None and asked not in names:
        raise InputError(f"--best_by {asked} is no score of this task: give {', '.join(names)}")
    return asked or names[0]


def _example_size(batches: tf.data.Dataset) -> tuple[float, float]:
    """Mean tokens per example, without and with the padding of its batch."""
    masks = [inputs["padding_mask"].numpy() for inputs, *_ in batches]  # each (B, T)
    examples = sum(len(mask) for mask in masks)
    return sum(mask.sum() for mask in masks) / examples, sum(m.size for m in masks) / examples


def finetune_seeds(
    options: FinetuningOptions,
    run: Callable[[FinetuningOptions], FinetuningResult | None],
) -> dict[str, dict[str, float]]:
    """Fine-tunes with several seeds, in `<output>/seed-N`, and keeps the best model as `best/`.

    Args:
        options: options of the command; the runs count their seed up from its seed.
        run: makes one run.

    Returns:
        Score -> "mean", "deviation" (of the sample), "best", as written to `seeds.json`.
    """
    if options.strategy == "multi_worker":
        raise InputError("--seeds and --strategy multi_worker cannot be combined: leave one out")
    chosen: tuple[float, Path] | None = None
    values: dict[str, list[float]] = {}
    output = Path(options.output)
    for seed in range(options.seed, options.seed + options.seeds):
        folder = output / f"seed-{seed}"
        result = run(replace(options, seeds=1, seed=seed, output=str(folder)))
        if result is None or result.evaluation is None:  # a dry run, or not the chief worker
            continue
        for name, value in result.evaluation.scores.items():
            if name != "examples" and value is not None:
                values.setdefault(name, []).append(value)
        best = result.training.best
        if best is not None and (chosen is None or best > chosen[0]):
            chosen = best, folder / "best"
    summary = {
        name: {
            "mean": statistics.fmean(each),
            "deviation": statistics.stdev(each) if len(each) > 1 else 0.0,
            "best": max(each),
            "runs": len(each),
        }
        for name, each in values.items()
    }
    if chosen is not None and values:
        with replace_directory(output / "best") as temporary:
            copytree(chosen[1], temporary, dirs_exist_ok=True)
        with replace_file(output / "seeds.json") as file:
            file.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary
