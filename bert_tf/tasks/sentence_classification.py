"""Classifying sentences or pairs of sentences (paper, section 4.1): data, model, scores, files."""

import hashlib
import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from bert_tf.atomic import replace_file
from bert_tf.checkpoints.formats import check_is_model_directory
from bert_tf.checkpoints.model_directory import load_model, save_model
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.classifier import BertClassifier
from bert_tf.models.cost import classification_flops
from bert_tf.options import identity
from bert_tf.tasks.metrics import classification_scores
from bert_tf.tasks.options import FinetuningOptions, LabelledData, save_config, steps_to_profile
from bert_tf.tasks.training_setup import make_plan, make_run, prepare
from bert_tf.tasks.watching import rates, watch_run
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.loop import Phase, TrainingResult, check_steps_per_execution
from bert_tf.training.means import accuracy, cross_entropy
from bert_tf.training.run import Run
from bert_tf.training.strategy import check_batch_size, distribute_batches
from pipelines.examples.labelled_text import LabelledText, read_labelled_text, text_batches

_TASK_FILE = "task.json"

# Enough to tell how long the examples are.
_SAMPLED_BATCHES = 8


@dataclass(frozen=True)
class SentenceClassification:
    """A fine-tuned classifier with all that is needed to use it again.

    Attributes:
        model: the classifier; its `labels` name the classes.
        tokenizer: the one it was trained with.
        data: columns and length it was trained with.
    """

    model: BertClassifier
    tokenizer: BertTokenizer
    data: LabelledData

    @classmethod
    def from_directory(cls, directory: str | Path) -> "SentenceClassification":
        """Loads what `save` wrote, or a Hugging Face sequence classification model.

        Raises:
            InputError: the directory holds no classifier, or it cannot be read.
        """
        model = load_model(directory, BertClassifier)
        tokenizer = BertTokenizer.from_directory(directory)
        path = Path(directory) / _TASK_FILE
        try:
            data = LabelledData(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            data = LabelledData()
        except (ValueError, TypeError) as error:
            raise InputError(f"{path} cannot be read ({error}): restore or delete it") from error
        return cls(model, tokenizer, data)

    @property
    def labels(self) -> list[str]:
        """One name a class, in the order of the logits."""
        return self.model.labels or [f"LABEL_{i}" for i in range(self.model.num_classes)]

    def save(self, directory: str | Path) -> None:
        """Writes a model directory, and beside it the columns and length it was trained with."""
        save_model(self.model, directory, tokenizer=self.tokenizer)
        with replace_file(Path(directory) / _TASK_FILE) as temporary:
            temporary.write_text(json.dumps(asdict(self.data), indent=2) + "\n", encoding="utf-8")

    def batches(self, examples: LabelledText, batch_size: int, **order: int) -> tf.data.Dataset:
        """Batches for the model; with `seed` and `start_step`, endless and shuffled each epoch."""
        return text_batches(
            examples,
            self.tokenizer,
            Packer(self.tokenizer, self.data.max_length),
            batch_size,
            labels=self.labels,
            **order,
        )

    def predict(self, examples: LabelledText, batch_size: int) -> np.ndarray:
        """Probabilities float32 [examples, classes]."""
        logits = self.model.predict(self.batches(examples, batch_size), verbose=0)
        return np.asarray(keras.ops.softmax(logits, axis=-1))

    def write_predictions(
        self, path: str | Path, examples: LabelledText, probabilities: np.ndarray
    ) -> None:
        """Writes a TSV without quotes, as `read_labelled_text` reads it.

        Its columns: the texts, their label if known, the predicted one, each probability. White
        space within a text, line ends too, becomes one space.
        """
        header = [self.data.text_column, *([self.data.pair_column] if examples.pairs else [])]
        header += [*(["label"] if examples.labels else []), "predicted", *self.labels]
        rows = [header]
        for i, row in enumerate(probabilities):
            texts = [examples.texts[i], *([examples.pairs[i]] if examples.pairs else [])]
            truth = [examples.labels[i]] if examples.labels else []
            predicted = self.labels[int(row.argmax())]
            rows.append([*texts, *truth, predicted, *(f"{p:.6f}" for p in row)])
        with replace_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for row in rows:
                file.write("\t".join(" ".join(str(cell).split()) for cell in row) + "\n")


def _read(path: str | Path, data: LabelledData) -> LabelledText:
    return read_labelled_text(
        path,
        text_column=data.text_column,
        pair_column=data.pair_column,
        label_column=data.label_column,
    )


def score(labels: list[str], examples: LabelledText, probabilities: np.ndarray) -> dict[str, float]:
    """Scores of predictions on labelled examples, the number of examples among them."""
    assert examples.labels is not None
    number_of = {label: number for number, label in enumerate(labels)}
    truth = np.array([number_of[label] for label in examples.labels])
    scores = classification_scores(truth, probabilities.argmax(-1), len(labels))
    return {"examples": len(truth), **scores}


def _split(examples: LabelledText, share: float, seed: int) -> tuple[LabelledText, LabelledText]:
    """Sets a share of the examples aside, drawn by `seed`."""
    count = len(examples.texts)
    aside = max(1, round(count * share))
    if not 0 < share < 1 or aside >= count:
        raise InputError(
            f"a validation share of {share} of {count} examples leaves nothing to train or to "
            "validate on: give --validation a file"
        )
    order = np.random.default_rng(seed).permutation(count)
    return examples.take(order[aside:]), examples.take(order[:aside])


def _labels_of(examples: LabelledText, path: str) -> list[str]:
    labels = sorted(set(examples.labels or []))
    if len(labels) < 2:
        raise InputError(f"{path} has one label only, {labels[0]!r}: classes need two at least")
    return labels


@dataclass(frozen=True)
class FinetuningResult:
    """What a fine-tuning run ended with.

    Attributes:
        training: steps and their time.
        scores: of the best epoch's model on the validation examples; of several workers the first
            one has them.
        train_examples: how many were trained on.
    """

    training: TrainingResult
    scores: dict[str, float]
    train_examples: int


def finetune(
    options: FinetuningOptions,
    report: Callable[[int, str, dict[str, float]], None],
    notice: Callable[[str], object] = warnings.warn,
    planned: Callable[[int], object] = lambda steps: None,
) -> FinetuningResult:
    """Fine-tunes a classifier; the run directory is `options.output`.

    `best/` there is the model of the epoch with the highest validation accuracy (of the first of
    them, where several tie), with its `predictions.tsv` and `metrics.json` beside it.

    Args:
        options: of the run.
        report: called with (step, "train" or "held_out", scalars) for each line logged.
        notice: see `pretrain`.
        planned: called with the steps of the whole run, before the first.

    Raises:
        InputError: the data, the model or the options cannot be used; the message says why.
        Preempted: see `train`; or another worker of the run has gone.
    """
    # First of all: several workers have to connect before TensorFlow runs an op.
    with make_run(options, notice) as run:
        return _finetune(run, options, report, planned)


def _finetune(
    run: Run,
    options: FinetuningOptions,
    report: Callable[[int, str, dict[str, float]], None],
    planned: Callable[[int], object],
) -> FinetuningResult:
    strategy = run.strategy
    check_batch_size(options.batch_size, strategy, options.gradient_accumulation_steps)
    data = LabelledData(
        text_column=options.text_column,
        pair_column=options.pair_column,
        label_column=options.label_column,
        max_length=options.max_length,
    )
    examples = _read(options.train, data)
    if options.validation:
        validation = _read(options.validation, data)
    else:
        examples, validation = _split(examples, options.validation_share, options.seed)
    labels = _labels_of(examples, options.train)

    check_is_model_directory(Path(options.model))
    tokenizer = BertTokenizer.from_directory(options.model)
    steps_per_epoch = math.ceil(len(examples.texts) / options.batch_size)
    total_steps = steps_per_epoch * options.epochs
    check_steps_per_execution(options.steps_per_execution, steps_per_epoch, [total_steps])
    with strategy.scope():
        if options.from_scratch:
            config = BertConfig.from_json(Path(options.model) / "config.json")
            model = BertClassifier(config, labels=labels, seed=options.seed)
        else:
            model = load_model(
                options.model,
                BertClassifier,
                labels=labels,
                allow_new_head=True,
                seed=options.seed,
            )
    if options.max_length > model.config.max_position_embeddings:
        raise InputError(
            f"--max_length {options.max_length} is more than the "
            f"{model.config.max_position_embeddings} positions of {options.model}: give a lower one"
        )
    task = SentenceClassification(model, tokenizer, data)
    prepare(
        run,
        model,
        options,
        total_steps=total_steps,
        warmup_steps=round(total_steps * options.warmup_share),
        loss=cross_entropy,
        metrics={"accuracy": accuracy},
        settings={
            "config": model.config.to_dict(),
            "train": _fingerprint(examples),
            "validation": _fingerprint(validation),
            "tokenizer": {"vocabulary": tokenizer.vocabulary_hash, **tokenizer.settings},
        },
    )

    def batches_of(examples: LabelledText, **order: int) -> Callable[[int, int, int], Any]:
        return lambda size, worker, workers: task.batches(
            examples, size, worker=worker, num_workers=workers, **order
        )

    def train_batches(step: int) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        batches = batches_of(examples, seed=options.seed, start_step=step)
        return distribute_batches(batches, strategy, options.batch_size)

    def sample() -> tf.data.Dataset:
        return task.batches(examples, options.batch_size, seed=options.seed)

    watch_run(
        run,
        model,
        sample,
        values={**identity(options), "model": options.model, "train": options.train},
        score="best_accuracy",
        total_steps=total_steps,
        histograms_every=options.histograms_every,
        profile=steps_to_profile(options.profile),
    )
    tokens, length = _example_size(sample().take(_SAMPLED_BATCHES))
    phase = Phase(
        until=total_steps,
        batches=train_batches,
        held_out=distribute_batches(batches_of(validation), strategy, options.batch_size),
        rates=rates(
            strategy,
            model.encoder.compute_dtype,
            tokens=tokens,
            flops=classification_flops(model.config, length=length, classes=len(labels)),
        ),
    )
    run.open(override=options.override)
    if run.is_chief:
        save_config(options, options.output)
    planned(total_steps)
    training = run.train(
        [phase],
        plan=make_plan(
            options, evaluate_every=steps_per_epoch, best_by="accuracy", larger_is_better=True
        ),
        save_model=task.save,
        report=report,
    )
    scores: dict[str, float] = {}
    if run.is_chief:
        folder = run.directory / "best"
        best = SentenceClassification.from_directory(folder)
        probabilities = best.predict(validation, options.batch_size)
        scores = score(labels, validation, probabilities)
        best.write_predictions(folder / "predictions.tsv", validation, probabilities)
        with replace_file(folder / "metrics.json") as temporary:
            temporary.write_text(json.dumps(scores, indent=2) + "\n", encoding="utf-8")
    run.meet()
    return FinetuningResult(training, scores, len(examples.texts))


def _example_size(batches: tf.data.Dataset) -> tuple[float, float]:
    """Tokens of an example, and with the padding of its batch: means over `batches`."""
    masks = [inputs["padding_mask"].numpy() for inputs, _ in batches]  # each (B, T)
    examples = sum(len(mask) for mask in masks)
    return sum(mask.sum() for mask in masks) / examples, sum(m.size for m in masks) / examples


def _fingerprint(examples: LabelledText) -> str:
    digest = hashlib.sha256()
    for column in (examples.texts, examples.pairs, examples.labels):
        digest.update(json.dumps(column).encode())
    return digest.hexdigest()


def evaluate(
    model_directory: str | Path, path: str | Path, *, batch_size: int = 32
) -> tuple[SentenceClassification, LabelledText, np.ndarray, dict[str, float]]:
    """Scores a fine-tuned model on labelled examples.

    Args:
        model_directory: as `finetune` writes it, such as `runs/classifier/best`.
        path: examples with the columns the model was trained with.
        batch_size: examples predicted at once.

    Returns:
        The task, the examples, probabilities float32 [examples, classes], and the scores.

    Raises:
        InputError: the model or the examples cannot be used, or a label is not one of the model's.
    """
    task = SentenceClassification.from_directory(model_directory)
    examples = _read(path, task.data)
    unknown = sorted(set(examples.labels or []) - set(task.labels))
    if unknown:
        raise InputError(
            f"{path} has the label {unknown[0]!r}, which {model_directory} does not know: its "
            f"labels are {', '.join(task.labels)}"
        )
    probabilities = task.predict(examples, batch_size)
    return task, examples, probabilities, score(task.labels, examples, probabilities)
