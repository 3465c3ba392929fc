"""The options of the training commands; this file imports nothing heavy, so help is quick."""

import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from bert_tf.atomic import replace_file
from bert_tf.errors import InputError

# The options that count something: the least that each can be.
_LEAST = {
    1: (
        "batch_size", "steps", "epochs", "gradient_accumulation_steps",
        "long_gradient_accumulation_steps", "steps_per_execution", "log_every", "save_every",
        "keep", "keep_every", "evaluate_every", "evaluation_batches", "histograms_every",
        "max_length",
    ),
    0: ("warmup_steps", "skip_nonfinite", "weight_decay"),
}  # fmt: skip


@dataclass(kw_only=True)
class TrainingOptions:
    """What every training run can be told.

    Raises InputError for a number below what it can be, and for a profile of no steps.

    Attributes:
        output: run directory: models (best/, last/), TensorBoard logs, checkpoints, config.yaml.
            A run that was stopped goes on from its last checkpoint when started again.
        batch_size: examples a step, over all devices.
        seed: of the initial weights, the dropout and the order of the data.
        strategy: devices to train on; auto takes a TPU, else all GPUs, else the CPU.
        precision: of the arithmetic; variables stay float32.
        jit_compile: compile the training step with XLA (one device only).
        deterministic: let TensorFlow use deterministic operations alone: the same numbers run
            after run on GPUs too, slower. On CPUs they are the same run after run without it.
        optimizer: adam, as the original's; lamb for very large batches.
        gradient_accumulation_steps: pieces that the batch of a device is cut into, one worked on
            after the other; the step is that of the whole batch, in less memory.
        rematerialize: compute activations again in the backward pass instead of keeping them: less
            memory, a fifth to a third more time.
        freeze_layers: keep the embeddings and so many encoder layers as they are; 0 for the
            embeddings alone.
        steps_per_execution: steps between two looks at the run; more cost less on fast devices.
        log_every: steps between two lines of losses and accuracies.
        save_every: steps between two checkpoints (there is one after each evaluation, too).
        keep: newest checkpoints that stay.
        keep_every: checkpoints of steps that are multiples of it stay for good.
        skip_nonfinite: steps whose loss or gradient is not finite to leave out, before one stops
            the run.
        override: continue a run with other settings than it began with.
        histograms_every: steps between two histograms of weights and activations in TensorBoard;
            none by default.
        profile: steps to profile for TensorBoard, as FIRST:LAST (10:20).
    """

    output: str
    batch_size: int = 32
    seed: int = 12345
    strategy: Literal["auto", "one", "mirrored", "multi_worker", "tpu"] = "auto"
    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    jit_compile: bool = False
    deterministic: bool = False
    optimizer: Literal["adam", "lamb"] = "adam"
    gradient_accumulation_steps: int = 1
    rematerialize: bool = False
    freeze_layers: int | None = None
    steps_per_execution: int = 1
    log_every: int = 100
    save_every: int = 1000
    keep: int = 2
    keep_every: int | None = None
    skip_nonfinite: int = 0
    override: bool = False
    histograms_every: int | None = None
    profile: str | None = None

    def __post_init__(self) -> None:
        for least, names in _LEAST.items():
            for name in names:
                value = getattr(self, name, None)
                if value is not None and not value >= least:
                    raise InputError(f"--{name} is {value}: give at least {least}")
        if self.profile is not None:
            steps_to_profile(self.profile)


@dataclass(kw_only=True)
class PretrainingOptions(TrainingOptions):
    """Options of `bert-tf pretrain`; the defaults are the paper's (section A.2) but for size.

    Attributes:
        shards: folder that `bert-tf shards` wrote, or TFRecord files of the original script.
        long_shards: shards of longer sequences, for the last steps of the run: most of the
            training is done on short ones, which cost less, and the positions beyond them are
            learned at the end (paper, section A.2: 128 tokens, then 512).
        long_share: of the steps, that are taken on `long_shards`.
        long_gradient_accumulation_steps: pieces of a device's batch then; by default as before.
        size: of a new model: tiny (2 layers, 128 wide), mini (4, 256), small (4, 512), medium
            (8, 512), base (12, 768) or large (24, 1024); or a config.json of your own.
        model: model directory to start from instead of random weights.
        tokenizer: tokenizer folder or vocab.txt the shards were made with; found in `shards`
            unless the original script wrote them.
        dropout: of hidden states and attention; by default the config's, 0.1 for a size by name.
            A short run on much text learns more with 0.
        initializer_range: standard deviation of new weights; by default the config's, 0.02 for a
            size by name. Narrow models leave the plateau of word frequencies sooner with more,
            up to 1 / sqrt(hidden size).
        steps: training steps.
        learning_rate: peak of Adam's learning rate.
        warmup_steps: steps of linear warm-up, then linear decay to 0 at the last step; by default
            a tenth of the steps, the paper's 10,000 at most.
        weight_decay: decoupled; LayerNorm and bias have none.
        clip_norm: global norm that gradients are clipped to.
        evaluate_every: steps between two evaluations on the held-out shards; best/ is the model
            with the lowest loss, of those trained on `long_shards` where there are any.
        evaluation_batches: held-out batches an evaluation takes at most.
        masked_lm_prob: share of the tokens to predict, for shards made with --masking dynamic; by
            default, as of the next two, what the shards were made with.
        whole_word_masking: mask all pieces of a word or none (true or false).
        max_ngram: mask runs of up to so many whole words.
        skip_corrupt: find corrupt records before training, leave them out and say how many.
        data_service: grpc://host:port of a tf.data service that makes the training batches.
        watch_text: texts with [MASK] in them; after each evaluation TensorBoard's text tab shows
            the model's five best words for each. By default some sentences of plain English.
    """

    shards: str
    long_shards: str | None = None
    long_share: float = 0.1
    long_gradient_accumulation_steps: int | None = None
    size: str = "small"
    model: str | None = None
    tokenizer: str | None = None
    dropout: float | None = None
    initializer_range: float | None = None
    batch_size: int = 64
    steps: int = 100_000
    learning_rate: float = 1e-4
    warmup_steps: int | None = None
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    evaluate_every: int = 1000
    evaluation_batches: int = 50
    masked_lm_prob: float | None = None
    whole_word_masking: bool | None = None
    max_ngram: int | None = None
    skip_corrupt: bool = False
    data_service: str | None = None
    watch_text: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class LabelledData:
    """How labelled text is read and shortened.

    Attributes:
        text_column: column of the sentence, or of the first of a pair.
        pair_column: column of the second sentence of a pair; none for single sentences.
        label_column: column of the label.
        max_length: tokens an example has at most, [CLS] and [SEP] counted; longer text is cut.
    """

    text_column: str = "text"
    pair_column: str | None = None
    label_column: str = "label"
    max_length: int = 128


@dataclass(kw_only=True)
class FinetuningOptions(LabelledData, TrainingOptions):
    """Options of `bert-tf finetune`; the defaults are within the paper's (section A.3).

    Attributes:
        model: model directory to start from.
        train: labelled examples with named columns: .tsv, .csv or .jsonl.
        validation: labelled examples the best epoch is chosen by; by default a share of `train`.
        validation_share: of `train`, where no validation file is given.
        from_scratch: start from random weights, the size and vocabulary as in `model`: what the
            pre-training is worth shows in the difference.
        epochs: passes over the training examples; each ends with an evaluation.
        learning_rate: peak of Adam's learning rate.
        warmup_share: of the steps, with linear warm-up; then linear decay to 0.
        weight_decay: decoupled; LayerNorm and bias have none.
        clip_norm: global norm that gradients are clipped to.
    """

    model: str
    train: str
    validation: str | None = None
    validation_share: float = 0.1
    from_scratch: bool = False
    epochs: int = 3
    learning_rate: float = 5e-5
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    clip_norm: float = 1.0


def steps_to_profile(given: str) -> tuple[int, int]:
    """The first and the last of the steps that `--profile` names.

    Raises:
        InputError: it is not FIRST:LAST, with 1 <= FIRST <= LAST.
    """
    parsed = re.fullmatch(r"(\d+):(\d+)", given)
    if parsed is None or not 1 <= int(parsed[1]) <= int(parsed[2]):
        raise InputError(f"--profile {given} is not FIRST:LAST: give steps such as 10:20")
    return int(parsed[1]), int(parsed[2])


def save_config(options: Any, directory: str | Path) -> None:
    """Writes `config.yaml`, from which `--config` repeats the run, into a run directory."""
    text = yaml.safe_dump(asdict(options), sort_keys=False, allow_unicode=True)
    with replace_file(Path(directory) / "config.yaml") as temporary:
        temporary.write_text(text, encoding="utf-8")
