"""Fine-tuning, for every kind of task."""

import functools
import math
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import tensorflow as tf

from bert_tf.checkpoints.lora_adapter import write_adapter
from bert_tf.commands.finetuning_data import FinetuningData
from bert_tf.commands.finetuning_model import model_and_losses, new_model
from bert_tf.commands.finetuning_options import FinetuningOptions
from bert_tf.commands.hard_negatives import with_mined_negatives
from bert_tf.errors import InputError
from bert_tf.files.storage import is_remote
from bert_tf.models.cost import classification_flops
from bert_tf.models.encoder import BertEncoder
from bert_tf.networks.tensorflow.graphs import device_type
from bert_tf.networks.tensorflow.losses import Values, cross_entropy
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.ensembles import joint_kind
from bert_tf.tasks.kinds.kind import Answered, RowKind
from bert_tf.tasks.kinds.long_texts import WindowedKind
from bert_tf.tasks.kinds.sentence_embedding import SentenceEmbedding
from bert_tf.tasks.task import Task
from bert_tf.text.answerer import Answerer, Evaluation
from bert_tf.text.model_facts import METRICS_FILE, run_options
from bert_tf.text.opening import load_answerer
from bert_tf.training.device_speed import strategy_peak
from bert_tf.training.dry_run import dry_run
from bert_tf.training.loop import LOSS, TrainingResult
from bert_tf.training.phases import Phase, check_steps_per_execution
from bert_tf.training.run import Run
from bert_tf.training.strategy import check_batch_size, distribute_batches
from bert_tf.training.training_options import save_config
from bert_tf.training.warmup import warmup_steps
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
    loss: float | None = None  # mean loss of the evaluation; None if the task's answers tell none

    @property
    def scores(self) -> dict[str, float | None]:
        """The scores of the evaluation, and its loss; None for an undefined one."""
        scores = self.evaluation.scores if self.evaluation else {}
        return scores if self.loss is None else {**scores, LOSS: self.loss}

    @property
    def score(self) -> float | None:
        """The score that chooses; None if undefined, as F1 of a type that never occurs."""
        return self.scores.get(self.best_by)


def run_finetuning(
    options: FinetuningOptions, watcher: Watcher | None = None
) -> FinetuningResult | None:
    """Fine-tunes a model; the run directory is `options.output`.

    `best/` there is the model with the best score on the validation examples (in a tie the lowest
    loss, then the last of them), with its predictions and `metrics.json`, both computed in float32.
    Returns None for a dry run. Raises InputError if the data, the model or the options cannot be
    used; Preempted if the run was stopped, or another worker has gone.
    """
    task = options.task_to_train()
    options = options.with_defaults_of(task)
    check_task(task, options)
    inputs = [options.model, options.source, options.validation, options.teacher]
    with Run(options, watcher, inputs) as run:
        return _Finetuning(run, FinetuningData.read(task, options), options).result()


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
    elif options.mine_negatives:
        raise InputError(f"--mine_negatives is not for the task {task.name}: leave it out")


def _check_embedding(kind: SentenceEmbedding, options: FinetuningOptions) -> None:
    for name in ("jit_compile", "class_weights"):
        if getattr(options, name) not in (None, False, "auto"):
            raise InputError(f"--{name} is not for vectors of texts: leave it out")
    if options.gradient_accumulation_steps > 1:
        raise InputError(
            "the texts of a batch are compared with each other, which micro-batches cannot: leave "
            "--gradient_accumulation_steps out"
        )
    if options.mine_negatives and (kind.embedding_loss != "infonce" or kind.negatives):
        raise InputError(
            "--mine_negatives is for infonce, on pairs without negatives of their own: leave it out"
        )
    if options.batch_size == 1 and not (kind.negatives or options.mine_negatives):
        raise InputError(
            "the other texts of a batch are the wrong answers, and --batch_size 1 has none: give 2 "
            "or more"
        )


class _Finetuning:
    """A fine-tuning: its numbers of steps, its model, and what happens in order."""

    def __init__(self, run: Run, data: FinetuningData, options: FinetuningOptions) -> None:
        self.run = run
        self.data = data
        self.options = options
        self.best_by = data.score_to_choose_by(options.best_by)
        assert options.batch_size is not None and options.epochs is not None
        self.size = options.batch_size
        self.rows_at_once = self.size // options.gradient_accumulation_steps  # of an evaluation
        steps_per_epoch = math.ceil(data.rows / self.size)
        self.total_steps = min(steps_per_epoch * options.epochs, options.max_steps or sys.maxsize)
        self.evaluate_every = options.evaluate_every or steps_per_epoch
        check_batch_size(self.size, run.strategy, options.gradient_accumulation_steps)
        check_steps_per_execution(
            options.steps_per_execution, self.evaluate_every, [self.total_steps]
        )
        task = data.task
        with run.strategy.scope():
            self.model = new_model(options, task.kind, data.labels, data.config)
            self.tuned = _in_detail(Answerer(task, self.model, data.tokenizer, data.labels))
            self.trained, self.loss, self.metrics = model_and_losses(
                options, self.tuned, run.precision
            )
        if options.mine_negatives:
            data = self.data = with_mined_negatives(
                data, self.tuned, options.mine_negatives, self.rows_at_once, run.working
            )
        # Devices that compile the step compile it for every new shape.
        self.fixed_length = options.jit_compile is True or device_type(run.strategy) == "TPU"
        self.batches = functools.partial(
            data.batches, seed=options.seed, fixed_length=self.fixed_length
        )

    def result(self) -> FinetuningResult | None:
        """Trains and evaluates; returns None for a dry run."""
        run = self.run
        with self._keeping_vectors():
            phase = self._phase()
            self._make_trainer()
            count = f"{self.total_steps:,} step{'s' * (self.total_steps != 1)}"
            lines = [f"{run.devices}: {self.data}, {count} of {self.size}", *self.data.remarks]
            if self.options.dry_run:
                lines += dry_run(run.trainer, [phase])
            else:
                run.open()
            for line in lines:
                run.notice(line)
            if self.options.dry_run:
                return None
            training = self._train(phase)
        evaluation = self._evaluation(training) if run.is_chief else None
        run.meet()
        return FinetuningResult(
            training,
            self.best_by,
            evaluation,
            len(self.data.train),
            evaluations=math.ceil(training.step / self.evaluate_every),
            loss=_mean_loss(evaluation.answered, self.loss) if evaluation else None,
        )

    def _keeping_vectors(self) -> AbstractContextManager[object]:
        """Keeps the vectors of a frozen encoder in the run directory until the training ends."""
        options = self.options
        is_kept = self.run.is_chief and not options.dry_run and not is_remote(options.output)
        # It is deleted at the end: a name that no folder of the user's has.
        folder = self.run.directory / ".bert-tf-features" if is_kept else None
        architecture = self.model.config.architecture
        return architecture.keeping_vectors(self.model.encoder, folder, self.run.notice)

    def _phase(self) -> Phase:
        strategy = self.run.strategy
        evaluated = self.data.validation
        if self.options.dry_run:  # two batches, as evaluations compute two at the same time
            evaluated = self.tuned.longest(evaluated, 2 * self.rows_at_once)
        tokens, flops = _amounts(self.tuned, self.batches(self.size))
        return Phase(
            until=self.total_steps,
            batch_size=self.size,
            evaluate=lambda: _validation_scores(
                self.tuned, evaluated, self.loss, self.rows_at_once
            ),
            batches=lambda step: distribute_batches(
                functools.partial(self.batches, start_step=step),
                strategy,
                self.size,
                fixed_rows=self.fixed_length,
            ),
            tokens=tokens,
            flops=flops,
            peak=strategy_peak(strategy, self.model.encoder.compute_dtype),
        )

    def _make_trainer(self) -> None:
        options = self.options
        assert options.learning_rate is not None
        self.run.make_trainer(
            self.trained,
            learning_rate=options.learning_rate,
            total_steps=self.total_steps,
            warmup_steps=warmup_steps(self.total_steps, options.warmup_share),
            loss=self.loss,
            metrics=self.metrics,
            settings={**self.data.settings, "config": self.model.config.to_dict()},
            examples=lambda: self.batches(self.size),
            values={"model": options.model, "train": options.source},
            score=f"best_{self.best_by}",
            fixed_shapes=self.fixed_length,
            whole_batches=self.data.task.kind.losses.mean_over == "batch",
        )

    def _train(self, phase: Phase) -> TrainingResult:
        outcome = self.run.directory / "best" / METRICS_FILE  # written last: best/ is then finished
        if self.run.is_chief:
            if self.options.calibrate and not run_options(outcome.parent).get("calibrate"):
                outcome.unlink(missing_ok=True)
            save_config(self.options, self.run.directory)

        def save(folder: Path) -> None:
            if folder == outcome.parent:
                outcome.unlink(missing_ok=True)
            self._save(folder)

        return self.run.train(
            [phase], evaluate_every=self.evaluate_every, best_by=self.best_by, save_model=save
        )

    def _save(self, folder: Path) -> None:
        self.tuned.save(folder)
        if self.options.save_adapter:
            write_adapter(self.model, folder / "adapter", self.options.model)

    def _evaluation(self, training: TrainingResult) -> Evaluation:
        """The evaluation of the best model, which is written."""
        run = self.run
        best = run.directory / "best"
        if training.best is None:
            run.notice(f"{self.best_by} was undefined at every evaluation: best/ is the last model")
            if not (best / METRICS_FILE).exists() and not run.state.is_dropped:
                self._save(best)
        evaluation = _evaluate_best(
            run, self.tuned, self.data.validation, self.rows_at_once, self.options.calibrate
        )
        if not self.options.keep_states:
            run.state.drop()
        return evaluation


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
    answered = tuned.answers(examples, size)
    scores = tuned.task.kind.scores(answered)
    scores = {name: value for name, value in scores.items() if value is not None}
    mean_loss = _mean_loss(answered, loss)
    return scores if mean_loss is None else {**scores, LOSS: mean_loss}


def _mean_loss(answered: Answered, loss: Values) -> float | None:
    """The loss of answers; None for a kind whose answers do not tell it."""
    kind = answered.task.kind
    return kind.mean_loss(answered, loss) if hasattr(kind, "mean_loss") else None


def _in_detail(answerer: Answerer) -> Answerer:
    """The answerer with all probabilities in its answers, which `_mean_loss` needs."""
    task = answerer.task
    return replace(answerer, task=replace(task, kind=joint_kind(task.kind, [task.kind])))


def _evaluate_best(
    run: Run, tuned: Answerer, examples: Examples, size: int, calibrate: bool
) -> Evaluation:
    """Evaluates the best model as `bert-tf evaluate` does, in float32, and writes the outcome.

    Calibrates and tunes the model first, unless its outcome is already written.
    """
    folder = run.directory / "best"
    best = _in_detail(load_answerer(folder))
    is_one = run.precision == "float32" and isinstance(best.model.encoder, BertEncoder)
    if is_one and len(best.model.weights) == len(tuned.model.weights):  # adapters are merged
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
