"""Options of a fine-tuning, and of a search of its settings."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from bert_tf.commands.command import EXAMPLES, CommandOptions
from bert_tf.errors import InputError
from bert_tf.options import PathName, extended, option
from bert_tf.tasks.task_options import FileOptions, TaskOptions
from bert_tf.training.training_options import TeacherOptions, TrainingOptions
from bert_tf.training.warmup import WARMUP_SHARE

if TYPE_CHECKING:
    from bert_tf.tasks.task import Task

_SPLITS = "a dict of both, such as a datasets.DatasetDict"


@dataclass(kw_only=True)
class FinetuningSetup(CommandOptions, TaskOptions, FileOptions, TrainingOptions, TeacherOptions):
    """Options that `bert-tf finetune` and `search` share."""

    model: PathName = option(path=True, model=True)
    """model directory to start from, its URL, or a model of the Hugging Face hub, ORG/NAME."""
    data: Any = option(None, path=True, data=_SPLITS)
    """data set with training and validation examples: the folder of its published files, or its
    name in TensorFlow Datasets, such as tfds:glue/mrpc."""
    train: Any = option(None, path=True, data=EXAMPLES)
    """labelled examples in place of --data: a .tsv, .csv or .jsonl file."""
    validation: Any = option(None, path=True, data=EXAMPLES)
    """labelled examples that choose the best model; by default those of the data set, or else a
    share of the training examples."""
    validation_share: float = option(0.1, above=0, below=1, identity=False)
    """share of the training examples to set aside for validation if there is no validation file;
    equal texts, questions on one context and sentences of one document stay together."""
    label_column: str | None = option(None, identity=False)
    """column of the label, by name or number."""
    from_scratch: bool = False
    """start from random weights, with the size and vocabulary of the model; compare with a normal
    run to see what pre-training gains."""
    lora_rank: int | None = option(None, at_least=1)
    """train adapters of this rank, such as 8, on queries and values of a frozen encoder (LoRA, Hu
    et al. 2021), with the head and the pooler; saved models have them merged. Default learning
    rates are then 10 times as high."""
    save_adapter: bool = option(False, identity=False)
    """also write the adapters of --lora_rank, and the head, for Hugging Face PEFT: best/adapter."""
    dropout: float | None = option(None, at_least=0, below=1)
    """dropout of hidden states and attention; by default the model's."""
    max_steps: int | None = option(None, at_least=1)
    """end the training after this many steps, whatever the epochs."""
    evaluate_every: int | None = option(None, at_least=1)
    """steps between two evaluations on the validation examples; by default an epoch."""
    best_by: str | None = None
    """score that chooses the best model, such as accuracy, f1 or loss, the validation loss; by
    default the task's first. Of equal scores, the model with the lower validation loss is the best,
    then the later one."""
    warmup_share: float = option(WARMUP_SHARE, at_least=0, at_most=1)
    """share of the steps with linear warm-up."""
    label_smoothing: float = option(0.0, at_least=0, below=1)
    """share of each target to spread over all classes."""
    class_weights: Literal["balanced"] | None = None
    """balanced gives every class the same total weight in the loss."""
    calibrate: bool = option(False, identity=False)
    """calibrate the best model's probabilities by temperature scaling on the validation examples;
    for tasks with classes."""
    seeds: int = option(1, at_least=1, identity=False)
    """number of runs, each with the next seed; reports mean, deviation and best."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (self.train is None):
            raise InputError("give exactly one of --data and --train")
        if self.lora_rank is not None and self.from_scratch:
            raise InputError("--lora_rank freezes random weights: leave --from_scratch out")
        if self.lora_rank is not None and self.freeze_layers is not None:
            raise InputError("--lora_rank freezes the whole encoder: leave --freeze_layers out")
        if self.save_adapter and self.lora_rank is None:
            raise InputError("--save_adapter needs --lora_rank: give one, such as 8")
        if self.save_adapter and self.calibrate:
            raise InputError("--save_adapter and --calibrate cannot be combined: leave one out")

    @property
    def source(self) -> str:
        """The path that the training examples are read from."""
        return self.data or self.train or ""

    def task_to_train(self) -> "Task":
        """The task that the model is trained for, with the settings that these options change."""
        from bert_tf.tasks.model_task import task_of_model

        task = task_of_model(self.model, vars(self), to_train=True)
        assert task is not None
        return task

    @property
    def rate_factor(self) -> int:
        """What the default learning rates of a BERT are multiplied by."""
        return 1 if self.lora_rank is None else 10  # adapters begin at zero

    def usual_rates(self, rates: list[float], *, tried: bool) -> list[float]:
        """Default learning rates, of a run or `tried` by a search, where a BERT has `rates`."""
        return rates

    def config_changes(self, model_class: type) -> dict[str, Any]:
        """Values of the model's `BertConfig` for what stands between its encoder and its head."""
        return {"feature_layers": None, "feature_lstm_layers": 0}


@extended("finetuning options")
@dataclass(kw_only=True)
class FinetuningOptions(FinetuningSetup):
    """Options of `bert-tf finetune`; the defaults lie within the paper's (section A.3)."""

    batch_size: int | None = option(None, at_least=1)
    """examples per step, over all devices; by default the task's, mostly 32."""
    learning_rate: float | None = option(None, above=0)
    """peak learning rate; by default the task's, mostly 5e-5."""
    epochs: int | None = option(None, at_least=1)
    """passes over the training examples; by default the task's, mostly 3."""
    mine_negatives: int | None = option(None, at_least=1)
    """number of hard negatives for each pair of sentence embeddings: before the training, the model
    finds the nearest texts that are not the right answer, among the second texts of all pairs."""
    keep_states: bool = option(False, identity=False)
    """keep the last checkpoints of the finished run, each three times the size of the model; with
    them --override can train it on with other settings, such as more epochs."""

    def with_defaults_of(self, task: "Task") -> Self:
        """The options with the task's values for those that are left to it."""
        (usual_rate,) = self.usual_rates([self.rate_factor * task.learning_rate], tried=False)
        return replace(
            self,
            task=task.name,
            max_length=task.max_length,
            epochs=self.epochs or task.epochs,
            batch_size=self.batch_size or task.batch_size,
            learning_rate=self.learning_rate or usual_rate,
        )


@extended("finetuning options")
@dataclass(kw_only=True)
class SearchOptions(FinetuningSetup):
    """Options of `bert-tf search`; the defaults are the settings that the paper tries."""

    batch_size: list[int] = option(factory=lambda: [16, 32], at_least=1)
    """batch sizes to try, over all devices."""
    learning_rate: list[float] = option(factory=list, above=0)
    """peak learning rates to try; by default 5e-5, 4e-5, 3e-5 and 2e-5, for a head on frozen
    vectors 3e-3, 1e-3, 3e-4 and 1e-4."""
    epochs: list[int] = option(factory=lambda: [2, 3, 4], at_least=1)
    """numbers of epochs to try."""
    trials: int | None = option(None, at_least=1)
    """number of settings to try, proposed by Optuna's TPE from the scores so far: one of the batch
    sizes, and any learning rate and number of epochs between the smallest and the largest given. By
    default every combination of the values given."""
    seeds: int = option(1, at_least=1)
    """runs of each setting, each with the next seed; their mean score ranks it."""
    keep_models: int = option(1, at_least=1)
    """number of settings, the best first, whose best model is kept beside best/; `bert-tf ensemble`
    averages several."""

    @property
    def rates(self) -> list[float]:
        """The learning rates to try."""
        rates = [self.rate_factor * rate for rate in (5e-5, 4e-5, 3e-5, 2e-5)]
        return self.learning_rate or self.usual_rates(rates, tried=True)


def refuse_bad_rows(options: FinetuningSetup) -> None:
    """Raises an InputError that names all rows of the options' files that cannot be used.

    A data set of TensorFlow Datasets and a user's own task need TensorFlow: their rows are checked
    when the run reads them.
    """
    from bert_tf.pipelines.examples.bad_rows import refuse
    from bert_tf.tasks.model_task import task_to_read

    task = task_to_read(options.model, vars(options), to_train=True)
    train = options.source
    if task is None or not isinstance(train, str) or ":" in train:
        return
    faults: list[InputError] = []
    examples = task.read(train, "train", faults=faults)
    labels = task.kind.label_names(task, examples)
    validation = options.validation or (train if task.has(train, "validation") else None)
    parts = [examples]
    if isinstance(validation, str) and ":" not in validation:
        parts.append(task.read(validation, "validation", faults=faults))
    for part in parts:
        if "label" in part.columns:
            faults += task.kind.label_faults(part, labels).values()
    refuse(faults)
