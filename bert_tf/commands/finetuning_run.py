"""Fine-tuning, for every kind of task."""

import functools
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_tf.commands.finetuning_data import FinetuningData
from bert_tf.commands.finetuning_model import in_training, new_model
from bert_tf.commands.finetuning_options import FinetuningOptions
from bert_tf.errors import InputError
from bert_tf.models.answerer import Answerer, Evaluation
from bert_tf.models.cost import classification_flops
from bert_tf.models.encoder import BertEncoder
from bert_tf.models.model_facts import METRICS_FILE, run_options
from bert_tf.models.opening import load_answerer
from bert_tf.networks.tensorflow.graphs import device_type
from bert_tf.networks.tensorflow.losses import Values, cross_entropy
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds.kind import Answered, RowKind
from bert_tf.tasks.kinds.long_texts import WindowedKind
from bert_tf.tasks.kinds.sentence_embedding import SentenceEmbedding
from bert_tf.tasks.task import Task
from bert_tf.training.device_speed import strategy_peak
from bert_tf.training.dry_run import dry_run
from bert_tf.training.loop import Phase, TrainingResult, check_steps_per_execution
from bert_tf.training.run import Run
from bert_tf.training.strategy import check_batch_size, distribute_batches
from bert_tf.training.training_options import save_config
from bert_tf.training.watcher import Watcher

_SAMPLED_BATCHES = 8  # enough to measure the mean length of examples
_LOG_TEMPERATURES = (-3.0, 3.0)  # that calibration tries


@dataclass(frozen=True)
class FinetuningResult:
    training: TrainingResult
    best_by: str  # name of the score that chooses the best model
    evaluation: Evaluation | None  # of the best model, by the chief worker alone
    train_examples: int
    evaluations: int = 1  # number that the best model is the best of

    @property
    def score(self) -> float | None:
        """The score that chooses; None if undefined, as F1 of a type that never occurs."""
        return self.evaluation.scores.get(self.best_by) if self.evaluation else None


def run_finetuning(
    options: FinetuningOptions, watcher: Watcher | None = None
) -> FinetuningResult | None:
    """Fine-tunes a model; the run directory is `options.output`.

    `best/` there is the model with the best score on the validation examples (the first of them in
    a tie), with its predictions and `metrics.json`, both computed in float32. Returns None for a
    dry run. Raises InputError if the data, the model or the options cannot be used; Preempted if
    the run was stopped, or another worker has gone.
    """
    task = options.task_to_train()
    options = options.with_defaults_of(task)
    check_task(task, options)
    inputs = [options.model, options.source, options.validation, options.teacher]
    with Run(options, watcher, inputs) as run:
        return _finetune(run, FinetuningData.read(task, options), options)


def check_task(task: Task, options: FinetuningOptions) -> None:
    """Refuses a task that is not trained, and options that it cannot have."""
    kind = task.kind
    if not kind.is_trained:
        raise InputError(
            f"{task.name} trains no model: to train on plain text make shards of it (bert-tf "
            "shards), then give bert-tf pretrain --model DIRECTORY --shards SHARDS"
        )
    if options.calibrate and not (isinstance(kind, RowKind) and kind.losses.has_probabilities):
        raise InputError(
            f"--calibrate is for tasks with classes, not for {task.name}: leave it out"
        )
    if options.teacher is not None and kind.losses.soft is None:
        raise InputError(f"--teacher is not for the task {task.name}: leave it out")
    if options.label_smoothing and kind.losses.loss is not cross_entropy:
        raise InputError("--label_smoothing is for tasks with classes: leave it out")
    if isinstance(kind, WindowedKind) and kind.reads_windows:
        kind.stride(task.max_length)
        if options.jit_compile is True or options.strategy == "tpu":
            raise InputError(
                "--long_texts windows makes batches of any number of rows, which neither XLA nor "
                "TPUs can: leave --jit_compile and --strategy tpu out"
            )
        if options.teacher_layers is not None:
            raise InputError("--teacher_layers is not for --long_texts windows: leave one out")
        if task.pair is not None and not isinstance(kind, SentenceEmbedding):
            raise InputError(
                "--long_texts windows is for single texts, not for pairs: leave it out"
            )
    if isinstance(kind, SentenceEmbedding):
        _check_embedding(kind, options)


def _check_embedding(kind: SentenceEmbedding, options: FinetuningOptions) -> None:
    for name in ("jit_compile", "class_weights"):
        if getattr(options, name) not in (None, False, "auto"):
            raise InputError(f"--{name} is not for vectors of texts: leave it out")
    if options.gradient_accumulation_steps > 1:
        raise InputError(
            "the texts of a batch are compared with each other, which micro-batches cannot: leave "
            "--gradient_accumulation_steps out"
        )
    if options.batch_size == 1 and not kind.negatives:
        raise InputError(
            "the other texts of a batch are the wrong answers, and --batch_size 1 has none: give 2 "
            "or more"
        )


def _finetune(
    run: Run, data: FinetuningData, options: FinetuningOptions
) -> FinetuningResult | None:
    task, validation = data.task, data.validation
    best_by = data.score_to_choose_by(options.best_by)
    size, epochs, learning_rate = options.batch_size, options.epochs, options.learning_rate
    assert size is not None and epochs is not None and learning_rate is not None
    rows_at_once = size // options.gradient_accumulation_steps  # of an evaluation
    steps_per_epoch = math.ceil(data.rows / size)
    total_steps = min(steps_per_epoch * epochs, options.max_steps or sys.maxsize)
    evaluate_every = options.evaluate_every or steps_per_epoch
    check_batch_size(size, run.strategy, options.gradient_accumulation_steps)
    check_steps_per_execution(options.steps_per_execution, evaluate_every, [total_steps])
    with run.strategy.scope():
        model = new_model(options, task.kind, data.labels, data.config)
        tuned = Answerer(task, model, data.tokenizer, data.labels)
        trained, loss, metrics = in_training(options, tuned, run.precision)
    end_training = options.begin_training(run, model)
    # Devices that compile the step compile it for every new shape.
    fixed_length = options.jit_compile is True or device_type(run.strategy) == "TPU"
    batches = functools.partial(data.batches, seed=options.seed, fixed_length=fixed_length)
    evaluated = validation
    if options.dry_run:  # two batches, as evaluations compute two at the same time
        evaluated = tuned.longest(validation, 2 * rows_at_once)
    tokens, flops = _amounts(tuned, batches(size))
    phase = Phase(
        until=total_steps,
        batch_size=size,
        evaluate=lambda: _validation_scores(tuned, evaluated, loss, rows_at_once),
        batches=lambda step: distribute_batches(
            functools.partial(batches, start_step=step), run.strategy, size, fixed_rows=fixed_length
        ),
        tokens=tokens,
        flops=flops,
        peak=strategy_peak(run.strategy, model.encoder.compute_dtype),
    )
    run.make_trainer(
        trained,
        learning_rate=learning_rate,
        total_steps=total_steps,
        warmup_steps=round(total_steps * options.warmup_share),
        loss=loss,
        metrics=metrics,
        settings={**data.settings, "config": model.config.to_dict()},
        examples=lambda: batches(size),
        values={"model": options.model, "train": options.source},
        score=f"best_{best_by}",
        fixed_shapes=fixed_length,
        whole_batches=task.kind.losses.mean_over == "batch",
    )
    steps = f"{total_steps:,} step{'s' * (total_steps != 1)} of {size}"
    lines = [f"{run.devices}: {data}, {steps}", *data.remarks]
    if options.dry_run:
        lines += dry_run(run.trainer, [phase])
    else:
        run.open()
    for line in lines:
        run.notice(line)
    if options.dry_run:
        return None
    outcome = run.directory / "best" / METRICS_FILE  # written last: best/ is then finished
    if run.is_chief:
        if options.calibrate and not run_options(outcome.parent).get("calibrate"):
            outcome.unlink(missing_ok=True)
        save_config(options, run.directory)

    def save(folder: Path) -> None:
        if folder == outcome.parent:
            outcome.unlink(missing_ok=True)
        tuned.save(folder)

    training = run.train(
        [phase],
        evaluate_every=evaluate_every,
        best_by=best_by,
        larger_is_better=True,
        save_model=save,
    )
    end_training()
    evaluation = None
    if run.is_chief:
        if training.best is None:
            run.notice(f"{best_by} was undefined at every evaluation: best/ is the last model")
            if not outcome.exists():
                tuned.save(outcome.parent)
        evaluation = _evaluate_best(run, tuned, validation, rows_at_once, options.calibrate)
    run.meet()
    evaluations = math.ceil(training.step / evaluate_every)
    return FinetuningResult(training, best_by, evaluation, len(data.train), evaluations)


def best_temperature(answered: Answered) -> float:
    """What to divide the outputs by for the least loss on these examples (Guo et al. 2017)."""
    from scipy.optimize import minimize_scalar

    kind = answered.task.kind
    outputs = kind.to_outputs(answered.answers, answered.labels)
    targets = kind.targets(answered.examples, answered.labels)

    def loss(logarithm: float) -> float:
        scaled = (outputs * np.exp(-logarithm)).astype(np.float32)
        return float(np.mean(kind.losses.loss(targets, scaled)))

    return float(np.exp(minimize_scalar(loss, bounds=_LOG_TEMPERATURES, method="bounded").x))


def _amounts(tuned: Answerer, batches: tf.data.Dataset) -> tuple[float, float]:
    """Mean tokens and operations per example, from the lengths of a few batches."""
    masks = [inputs["padding_mask"].numpy() for inputs, *_ in batches.take(_SAMPLED_BATCHES)]
    examples = sum(len(mask) for mask in masks)  # each (B, T)
    flops = classification_flops(
        tuned.model.config,
        length=sum(mask.size for mask in masks) / examples,
        classes=len(tuned.labels) or 1,
    )
    return sum(mask.sum() for mask in masks) / examples, flops


def _validation_scores(
    tuned: Answerer, examples: Examples, loss: Values, size: int
) -> dict[str, float]:
    """Scores on the validation examples, without undefined ones, and their loss if it is known."""
    kind, answered = tuned.task.kind, tuned.answers(examples, size)
    scores = {name: value for name, value in kind.scores(answered).items() if value is not None}
    if isinstance(kind, RowKind):
        outputs = kind.to_outputs(answered.answers, tuned.labels)
        scores["loss"] = float(np.mean(loss(kind.targets(examples, tuned.labels), outputs)))
    return scores


def _evaluate_best(
    run: Run, tuned: Answerer, examples: Examples, size: int, calibrate: bool
) -> Evaluation:
    """Evaluates the best model as `bert-tf evaluate` does, in float32, and writes the outcome.

    Calibrates and tunes the model first, unless its outcome is already written.
    """
    folder = run.directory / "best"
    best = load_answerer(folder)
    if run.precision == "float32" and isinstance(best.model.encoder, BertEncoder):
        # The trained model computes what a reloaded copy would, and is already traced.
        tuned.model.set_weights(best.model.get_weights())
        best = tuned
    evaluation = best.evaluate(examples, size)
    if (folder / METRICS_FILE).exists():
        return evaluation
    if calibrate:
        temperature = best_temperature(evaluation.answered)
        for variable in best.model.head.dense.weights:
            variable.assign(variable / temperature)
        best.save(folder)
        evaluation = best.evaluate(examples, size)
        run.notice(f"calibrated: the logits were divided by {temperature:.4g}")
    chosen = best.tuned(evaluation)
    if chosen is not best:
        chosen.save(folder)
        evaluation = chosen.evaluate(examples, size)
    evaluation.write(folder)
    return evaluation
