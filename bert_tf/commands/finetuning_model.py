"""The model that a fine-tuning trains: a stored one with a new head, perhaps with a teacher."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints.lora_adapter import adapter_tensors
from bert_tf.commands.finetuning_options import FinetuningSetup
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.layer_distillation import LayerLoss
from bert_tf.models.loading import about_to_train, class_of_kind, requiring_trained_head
from bert_tf.networks.tensorflow.losses import Values, smoothed_cross_entropy
from bert_tf.tasks.kinds.kind import Kind
from bert_tf.tasks.kinds.long_texts import WindowedKind
from bert_tf.text.answerer import Answerer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.distillation import check_teacher_tokenizer, student_metric, taught_by
from bert_tf.training.training_options import dropout_settings


def new_model(
    options: FinetuningSetup, kind: Kind, labels: Sequence[str], config: BertConfig
) -> Any:
    """The model to train, with a head for `labels`; `config` is the config of --model."""
    model = _with_head(options, kind, labels, config)
    if options.lora_rank is not None:
        model.encoder.add_adapters(options.lora_rank)
    if options.save_adapter:
        adapter_tensors(model)  # refuses what it cannot hold, before the training
    return model


def _with_head(
    options: FinetuningSetup, kind: Kind, labels: Sequence[str], config: BertConfig
) -> Any:
    model_class = class_of_kind(kind)
    head = {**kind.head(labels), "seed": options.seed}
    changed = {**options.config_changes(model_class), **dropout_settings(options.dropout)}
    with about_to_train():
        if options.from_scratch:
            recorded = model_class.arguments_in(Path(options.model))
            return model_class(replace(config, **changed), **{**recorded, **head})
        return model_class.from_directory(options.model, allow_new_head=True, **head, **changed)


def model_and_losses(
    options: FinetuningSetup, student: Answerer, precision: str
) -> tuple[Any, Values, Mapping[str, Values]]:
    """The model that a `Trainer` trains, its loss and its metrics.

    With a teacher, the model is a `Taught` student, and both losses of `taught_by` are its loss.
    """
    kind = student.task.kind
    losses = kind.losses
    # A model, or one that pools the outputs of windows.
    trained = kind.trained if isinstance(kind, WindowedKind) else lambda model: model
    teacher = _teacher(options.teacher, student, precision) if options.teacher else None
    loss = losses.loss
    if options.label_smoothing:
        loss = smoothed_cross_entropy(options.label_smoothing)
    if teacher is None:
        return trained(student.model), loss, losses.metrics
    order = [list(teacher.labels).index(label) for label in student.labels]

    def matched(outputs: Any, inputs: Any) -> Any:
        """Gives a teacher's outputs the order of the student's labels."""
        ordered = tf.gather(outputs, order, axis=-1) if order else outputs
        return losses.teacher_outputs(ordered, inputs)

    layers = None
    if options.teacher_layers is not None:
        layers = LayerLoss(options.teacher_layers, student.model, teacher.model)
    taught, loss = taught_by(
        options,
        trained(student.model),
        trained(teacher.model),
        loss,
        losses.soft,
        matched=matched,
        layers=layers,
    )
    return taught, loss, {name: student_metric(x) for name, x in losses.metrics.items()}


def _teacher(path: str, student: Answerer, precision: str) -> Answerer:
    """The model of a directory, which answers the student's task; refuses one that cannot."""
    with requiring_trained_head("the teacher "):
        model = class_of_kind(student.task.kind).from_directory(path, dtype=precision)
    teacher = Answerer.of(model, student.task, BertTokenizer.from_directory(path))
    check_teacher_tokenizer(path, teacher.tokenizer, student.tokenizer)
    if sorted(teacher.labels) != sorted(student.labels):
        raise InputError(
            f"the teacher {path} has the labels {', '.join(teacher.labels)}, the student "
            f"{', '.join(student.labels)}: give a teacher with the same labels"
        )
    return teacher
