"""The teacher of a fine-tuning run: opened, checked, and matched with the student by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from bert_tf.checkpoints.formats import content_hash
from bert_tf.errors import InputError
from bert_tf.finetuning.finetuning_options import FinetuningSetup
from bert_tf.trained.fine_tuned import FineTuned
from bert_tf.training.distillation import TEMPERATURE, WEIGHT, Taught, distilled, of_student
from bert_tf.training.means import Values


@dataclass(frozen=True, eq=False)
class Lessons:
    """What a trainer gets in place of a student, its loss and its metrics."""

    model: Any
    loss: Values
    metrics: Mapping[str, Values]
    settings: dict[str, Any]  # of the run, beside those of the options


def taught_by(
    options: FinetuningSetup, student: FineTuned, loss: Values, precision: str
) -> Lessons:
    """Has a student learn from `--teacher`, if there is one.

    Raises:
        InputError: the teacher has another task, other labels, another vocabulary or fewer
            positions, or the kind of task has no loss of a teacher's outputs.
    """
    kind = student.task.kind
    if options.teacher is None:
        return Lessons(kind.trained(student.model), loss, kind.metrics, {})
    soft = kind.soft_loss(options.teacher_temperature or TEMPERATURE)
    if soft is None:
        raise InputError(f"--teacher is not for the task {student.task.name}: leave it out")
    teacher = FineTuned.from_directory(options.teacher, dtype=precision)
    matched = _matched(options.teacher, teacher, student)
    weight = WEIGHT if options.teacher_weight is None else options.teacher_weight
    return Lessons(
        Taught(kind.trained(student.model), kind.trained(teacher.model), matched),
        distilled(loss, soft, weight),
        {name: of_student(metric) for name, metric in kind.metrics.items()},
        {"teacher_content": content_hash(options.teacher)},
    )


def _matched(path: str, teacher: FineTuned, student: FineTuned) -> Callable[[Any, Any], Any]:
    """Gives a teacher's outputs the order of the student's labels."""
    kind = student.task.kind
    if not isinstance(teacher.model, kind.model_class):
        raise InputError(
            f"{path} is a {type(teacher.model).__name__}, and {student.task.name} trains a "
            f"{kind.model_class.__name__}: give a teacher of the same task"
        )
    switches = teacher.tokenizer.other_switches(student.tokenizer.settings)
    if switches or teacher.tokenizer.vocabulary_hash != student.tokenizer.vocabulary_hash:
        differs = f"tokenizes in another way ({switches})" if switches else "has another vocabulary"
        raise InputError(
            f"the teacher {path} {differs}, so its outputs are of other tokens: give one with the "
            "student's vocab.txt and tokenizer_config.json"
        )
    if sorted(teacher.labels) != sorted(student.labels):
        raise InputError(
            f"the teacher {path} has the labels {', '.join(teacher.labels)}, the student "
            f"{', '.join(student.labels)}: give a teacher with the same labels"
        )
    task = student.task
    teacher.model.config.check_fits(length=task.max_length, pairs=task.pair is not None)
    order = [list(teacher.labels).index(label) for label in student.labels]

    def matched(outputs: Any, inputs: Any) -> Any:
        ordered = tf.gather(outputs, order, axis=-1) if order else outputs
        return kind.soft_targets(ordered, inputs)

    return matched
