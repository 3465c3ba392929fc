"""Options of every training run. Importing this module is quick, as `--help` needs it."""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from bert_tf.errors import InputError
from bert_tf.files.atomic import write_text
from bert_tf.options import CheckedOptions, PathName, option
from bert_tf.training.schedule_table import ScheduleName

# Of a teacher's outputs, where options leave them out.
WEIGHT = 0.9
TEMPERATURE = 2.0


@dataclass(kw_only=True)
class TeacherOptions(CheckedOptions):
    """Options for knowledge distillation."""

    teacher: PathName | None = option(None, path=True, model=True)
    """teacher for knowledge distillation: a model with the same outputs and vocabulary, to learn
    from in addition to the labels."""
    teacher_weight: float | None = option(None, above=0, at_most=1)
    """weight of the distillation loss; the loss of the labels has the rest. 0.9 by default."""
    teacher_temperature: float | None = option(None, above=0)
    """distillation temperature, which divides the logits of teacher and student; 2 by default."""
    teacher_layers: Literal["hidden_states", "attention_relations"] | None = None
    """also distill layers: hidden_states of evenly spaced layers (TinyBERT), or
    attention_relations, how queries, keys and values of the last layer relate the tokens
    (MiniLMv2)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("teacher_weight", "teacher_temperature", "teacher_layers"):
            if self.teacher is None and getattr(self, name) is not None:
                raise InputError(f"--{name} is for --teacher: give both or leave it out")

    def implied(self) -> dict[str, Any]:
        return {**super().implied(), "teacher_weight": WEIGHT, "teacher_temperature": TEMPERATURE}


@dataclass(kw_only=True)
class TrainingOptions(CheckedOptions):
    """Options for every training run."""

    output: PathName = option(writes="folder or URL")
    """run directory, or its URL (s3://BUCKET/KEY): models (best/, last/), TensorBoard logs,
    checkpoints, config.yaml. The same command resumes a stopped run from its last checkpoint."""
    seed: int = option(12345, at_least=0, below=2**31)
    """random seed for weight initialization, dropout and data order."""
    strategy: Literal["auto", "one", "mirrored", "multi_worker", "tpu"] = option(
        "auto", identity=False
    )
    """devices to train on; auto takes a TPU, else all GPUs, else the CPU."""
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """compute precision; variables stay float32. auto takes mixed_bfloat16 on TPUs, GPUs from
    Ampere on and processors measured to multiply it faster, else float32; a resumed run keeps its
    precision."""
    jit_compile: Literal["auto", True, False] = option("auto", alone=True, identity=False)
    """compile the training step with XLA (one device only); auto does so on a GPU where all batches
    have one shape, as in pre-training."""
    deterministic: bool = option(False, identity=False)
    """use only deterministic TensorFlow ops, so that GPUs give the same numbers on every run, more
    slowly; CPUs do so anyway."""
    optimizer: Literal["adam", "lamb"] = "adam"
    """adam, as in the original; lamb for very large batches."""
    schedule: ScheduleName = "linear"
    """learning rate after the warm-up; linear and cosine reach 0 at the last step,
    warmup_stable_decay stays at the peak and falls to 0 over the last steps (MiniCPM; Hägele et al.
    2024)."""
    decay_share: float | None = option(None, above=0, at_most=1)
    """share of the steps over which warmup_stable_decay falls; 0.1 by default."""
    layer_decay: float = option(1.0, above=0, at_most=1)
    """factor on the learning rate for each layer further from the output (ELECTRA's layer-wise
    decay; 0.9 or 0.8 for fine-tuning); 1 for none."""
    weight_decay: float = option(0.01, at_least=0)
    """decoupled weight decay; LayerNorm and biases have none."""
    clip_norm: float = option(1.0, above=0)
    """largest global norm of the gradients; larger ones are scaled down to it."""
    bias_correction: bool = False
    """bias-correct Adam's moments, as other libraries do and the original does not; without it,
    updates in the first 1,000 steps are up to 3 times larger, which can make short fine-tunings
    unstable (Mosbach et al. 2021). LAMB always does."""
    epsilon: float | None = option(None, above=0)
    """constant in the denominator of Adam and LAMB; by default the original's 1e-6. Other libraries
    use 1e-8, with which weights with small gradients learn faster."""
    gradient_accumulation_steps: int = option(1, at_least=1, identity=False)
    """micro-batches per device; their gradients are accumulated into one optimizer step."""
    rematerialize: bool = option(False, identity=False)
    """recompute activations in the backward pass: less memory, steps a fifth to a third longer."""
    freeze_layers: int | None = option(None, at_least=0)
    """freeze the embeddings and the first N encoder layers; 0 for the embeddings alone."""
    steps_per_execution: int = option(1, at_least=1, identity=False)
    """training steps per graph call; higher is faster on GPUs and TPUs."""
    patience: int | None = option(None, at_least=1)
    """end the run after this many evaluations without a better score, or an equal one with a lower
    validation loss."""
    log_every: int = option(100, at_least=1, identity=False)
    """training steps between two log lines of losses and accuracies."""
    save_every: int = option(1000, at_least=1, identity=False)
    """steps between two checkpoints; each evaluation is followed by one, too."""
    keep: int = option(2, at_least=1, identity=False)
    """number of newest checkpoints to keep."""
    keep_every: int | None = option(None, at_least=1, identity=False)
    """keep the checkpoints at multiples of this step for good."""
    skip_nonfinite: int = option(0, at_least=0, identity=False)
    """number of steps with a non-finite loss or gradient to skip before stopping."""
    override: bool = option(False, saved=False)
    """resume a run although its settings have changed."""
    dry_run: bool = option(False, saved=False)
    """take a few steps, evaluate a batch, print the parameters and the steps, time and memory that
    the run would take, and write nothing."""
    histograms_every: int | None = option(None, at_least=1, identity=False)
    """steps between two histograms of weights and activations in TensorBoard; none by default."""
    profile: str | None = option(None, identity=False)
    """steps to profile for TensorBoard, as FIRST:LAST (10:20)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay_share is not None and self.schedule != "warmup_stable_decay":
            raise InputError(
                f"--decay_share is for --schedule warmup_stable_decay, not {self.schedule}: leave "
                "it out, or choose that schedule"
            )
        if self.jit_compile is True and self.deterministic:
            raise InputError(
                "--jit_compile and --deterministic cannot be combined: Keras does not compile "
                "deterministic steps. Leave one of them out"
            )
        _ = self.profiled

    @property
    def profiled(self) -> tuple[int, int] | None:
        """The first and the last step that `profile` names; raises InputError if it names none."""
        if self.profile is None:
            return None
        parsed = re.fullmatch(r"(\d{1,18}):(\d{1,18})", self.profile)
        if parsed is None or not 1 <= int(parsed[1]) <= int(parsed[2]):
            raise InputError(f"--profile is {self.profile!r}: give FIRST:LAST, such as 10:20")
        return int(parsed[1]), int(parsed[2])


def save_config(options: CheckedOptions, directory: str | Path) -> None:
    """Writes `config.yaml`, from which `--config` repeats the run, into a run directory."""
    # JSON is YAML in which a column named "1e3" stays text.
    lines = [
        f"{field.name}: {json.dumps(getattr(options, field.name), ensure_ascii=False)}\n"
        for field in fields(options)
        if field.metadata.get("saved", True)
    ]
    write_text(Path(directory) / "config.yaml", "".join(lines))


def dropout_settings(dropout: float | None) -> dict[str, Any]:
    """The settings of `BertConfig` that an option `dropout` changes."""
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    return {} if dropout is None else dict.fromkeys(names, dropout)
