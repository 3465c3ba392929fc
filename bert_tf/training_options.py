"""Options of the training commands. Importing this module is quick, so that `--help` is."""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from bert_tf.atomic import write_text
from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, option

# Share of the steps with large batches, where a run has them and does not say.
LATE_SHARE = 0.5


@dataclass(kw_only=True)
class TrainingOptions(CheckedOptions):
    """Options that every training run has.

    Attributes:
        output: run directory: models (best/, last/), TensorBoard logs, checkpoints, config.yaml.
            The same command resumes a stopped run from its last checkpoint.
        seed: random seed for weight initialization, dropout and data order.
        strategy: devices to train on; auto takes a TPU, else all GPUs, else the CPU.
        precision: compute precision; variables stay float32. auto takes mixed_bfloat16 on TPUs,
            GPUs from Ampere on and processors measured to multiply it faster, else float32; a
            resumed run keeps its precision.
        jit_compile: compile the training step with XLA (one device only); auto does so on a GPU
            where all batches have one shape, as in pre-training.
        deterministic: use deterministic TensorFlow ops alone: GPUs give the same numbers on every
            run, more slowly. CPUs do so without it.
        optimizer: adam, as in the original; lamb for very large batches.
        schedule: learning rate after the warm-up; linear and cosine reach 0 at the last step,
            warmup_stable_decay stays at the peak and falls to 0 over the last steps (MiniCPM;
            Hägele et al. 2024).
        decay_share: share of the steps over which warmup_stable_decay falls; 0.1 by default.
        layer_decay: factor on the learning rate for each layer further from the output (ELECTRA's
            layer-wise decay; 0.9 or 0.8 for fine-tuning); 1 for none.
        weight_decay: decoupled weight decay; LayerNorm and biases have none.
        clip_norm: largest global norm of the gradients; larger ones are scaled down to it.
        bias_correction: correct Adam's means for their start at 0, as other libraries do and the
            original does not; without it the first thousand steps are up to 3 times as long, which
            can make short fine-tunings unstable (Mosbach et al. 2021). LAMB always does.
        epsilon: constant that Adam and LAMB add to the root of the mean square; by default the
            original's 1e-6. Other libraries have 1e-8, with which weights of small gradients learn
            sooner.
        gradient_accumulation_steps: micro-batches per device; their gradients are accumulated into
            one optimizer step.
        rematerialize: recompute activations in the backward pass to save memory; steps take a
            fifth to a third longer.
        freeze_layers: freeze the embeddings and the first N encoder layers; 0 for the embeddings
            alone.
        steps_per_execution: training steps per graph call; higher is faster on GPUs and TPUs.
        patience: end the run after this many evaluations without a better score.
        log_every: steps between two lines of losses and accuracies.
        save_every: steps between two checkpoints; each evaluation is followed by one, too.
        keep: number of newest checkpoints to keep.
        keep_every: keep the checkpoints at multiples of this step for good.
        skip_nonfinite: number of steps with a non-finite loss or gradient to skip before stopping.
        override: resume a run although its settings have changed.
        dry_run: take a few steps, evaluate a batch, print the parameters and the steps, time and
            memory that the run would take, and write nothing.
        histograms_every: steps between two histograms of weights and activations in TensorBoard;
            none by default.
        profile: steps to profile for TensorBoard, as FIRST:LAST (10:20).
    """

    output: str = option(writes="folder")
    seed: int = option(12345, at_least=0, below=2**31, identity=True)
    strategy: Literal["auto", "one", "mirrored", "multi_worker", "tpu"] = "auto"
    precision: Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"] = option(
        "float32", identity=True
    )
    jit_compile: Literal["auto", True, False] = option("auto", alone=True)
    deterministic: bool = False
    optimizer: Literal["adam", "lamb"] = option("adam", identity=True)
    schedule: Literal["linear", "cosine", "constant", "warmup_stable_decay"] = option(
        "linear", identity=True
    )
    decay_share: float | None = option(None, above=0, at_most=1, identity=True)
    layer_decay: float = option(1.0, above=0, at_most=1, identity=True)
    weight_decay: float = option(0.01, at_least=0, identity=True)
    clip_norm: float = option(1.0, above=0, identity=True)
    bias_correction: bool = option(False, identity=True)
    epsilon: float | None = option(None, above=0, identity=True)
    gradient_accumulation_steps: int = option(1, at_least=1)
    rematerialize: bool = False
    freeze_layers: int | None = option(None, at_least=0, identity=True)
    steps_per_execution: int = option(1, at_least=1)
    patience: int | None = option(None, at_least=1, identity=True)
    log_every: int = option(100, at_least=1)
    save_every: int = option(1000, at_least=1)
    keep: int = option(2, at_least=1)
    keep_every: int | None = option(None, at_least=1)
    skip_nonfinite: int = option(0, at_least=0)
    override: bool = option(False, saved=False)
    dry_run: bool = option(False, saved=False)
    histograms_every: int | None = option(None, at_least=1)
    profile: str | None = None

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
        if self.jit_compile is True and self.strategy == "tpu":
            raise InputError(
                "--jit_compile does not work under --strategy tpu, which compiles every step: "
                "leave --jit_compile out"
            )
        steps_to_profile(self.profile)


@dataclass(kw_only=True)
class PretrainingOptions(TrainingOptions):
    """Options of `bert-tf pretrain`; the defaults are the paper's (section A.2) except for size.

    Attributes:
        shards: folder that `bert-tf shards` wrote, or TFRecord files of the original script.
        long_shards: shards of longer sequences for the last steps of the run. Short sequences cost
            less, so most steps use them (paper, section A.2: 128 tokens, then 512).
        long_share: share of the steps that use `long_shards`; 0.1 by default.
        long_gradient_accumulation_steps: micro-batches per device on `long_shards`; by default as
            many as on `shards`.
        size: size of a new model: tiny (2 layers, 128 wide), mini (4, 256), small (4, 512), medium
            (8, 512), base (12, 768) or large (24, 1024); layers, width and attention heads, such as
            3x768x12; or a config.json; small by default.
        model: model directory to start from instead of random weights.
        tokenizer: tokenizer folder or vocab.txt of the shards; only needed for shards of the
            original script.
        objective: words to predict: mlm+nsp, masked words, and next sentences, by default on pairs
            of sentences; mlm, masked words alone, by default on other shards; ltr, each token from
            those before it; rtl, from those after it; ltr+rtl, a model for each, side by side;
            bilm, both with LSTMs in place of Transformers, as in ELMo. A model keeps the side that
            it sees; with --model, that is the default.
        dropout: dropout of hidden states and attention; by default the config's, 0.1 for a named
            size. A short run on much text learns more with 0.
        initializer_range: standard deviation of the truncated normal initializer; by default the
            config's, 0.02 for a named size. Narrow models learn sooner with more, up to
            1 / sqrt(hidden size).
        batch_size: examples per step, over all devices.
        late_batch_size: examples per step in the last steps, a multiple of batch_size (batches
            grow in cramming, Geiping and Goldstein 2023, and in ModernBERT, Warner et al. 2024).
            They are cut into as many more micro-batches, so that memory stays the same.
        late_share: share of the steps that use `late_batch_size`; 0.5 by default.
        learning_rate: peak learning rate.
        steps: number of training steps.
        warmup_steps: steps of linear warm-up; by default a tenth of the steps, at most the paper's
            10,000.
        evaluate_every: steps between two evaluations on the held-out shards; best/ is the model
            with the lowest loss, on `long_shards` or with `late_batch_size` if given.
        evaluation_batches: largest number of held-out batches per evaluation.
        masked_lm_prob: share of the tokens to predict, for shards made with --masking dynamic; by
            default, as for the next four, what the shards were made with.
        mask_token_share: share of the tokens to predict that [MASK] replaces.
        random_token_share: share of them that a random token replaces; the rest stays as it is.
        whole_word_masking: mask all pieces of a word or none (true or false).
        max_ngram: longest run of whole words to mask.
        skip_corrupt: find corrupt records before training, skip and count them.
        data_service: grpc://host:port of a tf.data service that makes the training batches.
        watch_text: texts with [MASK] in them; after each evaluation TensorBoard's text tab shows
            the model's five best words for each. By default texts of the held-out shards.
    """

    shards: str = option(path=True)
    long_shards: str | None = option(None, path=True)
    long_share: float | None = option(None, above=0, below=1)
    long_gradient_accumulation_steps: int | None = option(None, at_least=1)
    size: str | None = option(None, first=True)
    model: str | None = option(None, path=True)
    tokenizer: str | None = option(None, path=True)
    objective: Literal["mlm+nsp", "mlm", "ltr", "rtl", "ltr+rtl", "bilm"] | None = option(
        None, identity=True
    )
    dropout: float | None = option(None, at_least=0, below=1)
    initializer_range: float | None = option(None, above=0)
    batch_size: int = option(64, at_least=1, identity=True)
    late_batch_size: int | None = option(None, at_least=1, identity=True)
    late_share: float | None = option(None, above=0, below=1, identity=True)
    learning_rate: float = option(1e-4, above=0, identity=True)
    steps: int = option(100_000, at_least=1, identity=True)
    warmup_steps: int | None = option(None, at_least=0, identity=True)
    evaluate_every: int = option(1000, at_least=1, identity=True)
    evaluation_batches: int = option(50, at_least=1, identity=True)
    masked_lm_prob: float | None = option(None, above=0, below=1, identity=True)
    mask_token_share: float | None = option(None, at_least=0, at_most=1, identity=True)
    random_token_share: float | None = option(None, at_least=0, at_most=1, identity=True)
    whole_word_masking: bool | None = option(None, identity=True)
    max_ngram: int | None = option(None, at_least=1, identity=True)
    skip_corrupt: bool = False
    data_service: str | None = None
    watch_text: list[str] = option(factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        new_models_alone = {"size": self.size, "initializer_range": self.initializer_range}
        for name, value in new_models_alone.items():
            if self.model is not None and value is not None:
                raise InputError(
                    f"--{name} is for new models, and --model {self.model} is given: leave one out"
                )
        needed = {
            "long_share": "long_shards",
            "long_gradient_accumulation_steps": "long_shards",
            "late_share": "late_batch_size",
        }
        for name, other in needed.items():
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise InputError(f"--{name} is for --{other}: give both or leave it out")
        late = self.late_batch_size
        if late is not None and self.long_shards is not None:
            raise InputError(
                "--late_batch_size and --long_shards cannot be combined: leave one of them out"
            )
        if late is not None and (late % self.batch_size or late == self.batch_size):
            raise InputError(
                f"--late_batch_size {late} is no multiple of --batch_size {self.batch_size}: give "
                f"{2 * self.batch_size}, {3 * self.batch_size} or so on"
            )
        if self.warmup_steps is not None and self.warmup_steps > self.steps:
            raise InputError(
                f"--warmup_steps is {self.warmup_steps} of {self.steps} steps: give at most "
                f"{self.steps}"
            )

    @property
    def mean_batch_size(self) -> float:
        """Examples per step, on average over the run."""
        if self.late_batch_size is None:
            return self.batch_size
        share = self.late_share or LATE_SHARE
        return self.batch_size + share * (self.late_batch_size - self.batch_size)


@dataclass(kw_only=True)
class TaskOptions(CheckedOptions):
    """Options that say what a fine-tuned model is for.

    Attributes:
        task: a task or data set that `bert-tf tasks` lists, or a Python file that defines TASK; by
            default what task.json beside the model says, or classification.
        pair_column: column of the second text of a pair, by name or by number counted from 0.
        max_length: maximum tokens per example, [CLS] and [SEP] included; longer text is cut. By
            default what the model was fine-tuned with, 128 for a new one.
        doc_stride: for SQuAD, word pieces between the starts of two windows over a context.
        max_query_length: for SQuAD, word pieces that a question is cut to.
        max_answer_length: for SQuAD, maximum word pieces of an answer.
    """

    task: str | None = option(None, identity=True, first=True)
    pair_column: str | None = None
    max_length: int | None = option(None, at_least=3, identity=True)
    doc_stride: int | None = option(None, at_least=1)
    max_query_length: int | None = option(None, at_least=1)
    max_answer_length: int | None = option(None, at_least=1)


@dataclass(kw_only=True)
class FileOptions(CheckedOptions):
    """Options that say how a file of texts is read.

    Attributes:
        text_column: column of the text, or of the first text of a pair, by name or by number
            counted from 0; by default what the model was fine-tuned with, or "text".
        format: file format: tsv without quotes, csv with quotes, jsonl with one object per line,
            lines with one text each, or conll with one word each; by default the extension decides.
        header: whether the first line of a table names the columns.
    """

    text_column: str | None = None
    format: Literal["tsv", "csv", "jsonl", "lines", "conll"] | None = None
    header: bool = True


@dataclass(kw_only=True)
class EvaluationOptions(TaskOptions, FileOptions):
    """Options that `bert-tf evaluate` and `ensemble` share.

    Attributes:
        data: examples: a .tsv, .csv or .jsonl file; the folder of a data set's published files; or
            its name in TensorFlow Datasets, such as tfds:glue/mrpc; "-" for standard input.
        label_column: column of the label, by name or number.
        label_map: names in the data for labels of the model, as MODEL_LABEL=LABEL.
        output: folder for metrics.json, the task's predictions and the report; without it none are
            written.
        batch_size: examples per batch.
    """

    data: str = option(path=True)
    label_column: str | None = None
    label_map: list[str] = option(factory=list)
    output: str | None = option(None, writes="folder")
    batch_size: int = option(32, at_least=1)


@dataclass(kw_only=True)
class FinetuningSetup(TaskOptions, FileOptions, TrainingOptions):
    """Options that `bert-tf finetune` and `search` share.

    Attributes:
        model: model directory to start from.
        data: data set with training and validation examples: the folder of its published files, or
            its name in TensorFlow Datasets, such as tfds:glue/mrpc.
        train: labelled examples in place of --data: a .tsv, .csv or .jsonl file.
        validation: labelled examples that choose the best model; by default those of the data set,
            or else a share of the training examples.
        validation_share: share of the training examples to validate on, without a validation file;
            equal texts, the questions of a context and the sentences of a document stay together.
        label_column: column of the label, by name or number.
        features_only: train on vectors of these layers of the frozen encoder, computed once and
            kept in the run directory until its end: concat_last_four by default, others of
            `bert-tf features`, separated by commas (paper, section 5.3), or mix, a weighted sum of
            all layers whose weights are learned (ELMo's). A tagger gets a BiLSTM of two layers,
            other tasks a dense layer. The learning rate is then 1e-3 by default.
        bilstm: put a randomly initialized BiLSTM between the encoder and the head, and train it
            with both (paper, table 5); with --features_only, on the frozen vectors of any task.
        from_scratch: start from random weights, with the size and vocabulary of the model; compare
            with a normal run to see what pre-training gains.
        max_steps: end the training after this many steps, whatever the epochs.
        evaluate_every: steps between two evaluations on the validation examples; by default an
            epoch.
        best_by: score that chooses the best model, such as accuracy, f1 or matthews_correlation;
            by default the task's first.
        warmup_share: share of the steps with linear warm-up.
        label_smoothing: share of each target to spread over all classes.
        class_weights: balanced weighs the examples so that all classes count the same.
        seeds: number of runs, each with the next seed; reports mean, deviation and best.
    """

    model: str = option(path=True)
    data: str | None = option(None, path=True)
    train: str | None = option(None, path=True)
    validation: str | None = option(None, path=True)
    validation_share: float = option(0.1, above=0, below=1)
    label_column: str | None = None
    features_only: str | None = option(None, alone="concat_last_four", identity=True)
    bilstm: bool = option(False, identity=True)
    from_scratch: bool = option(False, identity=True)
    max_steps: int | None = option(None, at_least=1, identity=True)
    evaluate_every: int | None = option(None, at_least=1, identity=True)
    best_by: str | None = option(None, identity=True)
    warmup_share: float = option(0.1, at_least=0, at_most=1, identity=True)
    label_smoothing: float = option(0.0, at_least=0, below=1, identity=True)
    class_weights: Literal["balanced"] | None = option(None, identity=True)
    seeds: int = option(1, at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.data is None) == (self.train is None):
            raise InputError("give exactly one of --data and --train")
        if self.features_only is not None and (self.jit_compile is True or self.strategy == "tpu"):
            raise InputError(
                "--features_only reads vectors from the disk, which neither XLA nor TPUs can: "
                "leave --jit_compile and --strategy tpu out"
            )

    @property
    def source(self) -> str:
        """What the training examples are read from."""
        return self.data or self.train or ""


@dataclass(kw_only=True)
class FinetuningOptions(FinetuningSetup):
    """Options of `bert-tf finetune`; the defaults lie within the paper's (section A.3).

    Attributes:
        batch_size: examples per step, over all devices; by default the task's, mostly 32.
        learning_rate: peak learning rate; by default the task's, mostly 5e-5.
        epochs: passes over the training examples; by default the task's, mostly 3.
    """

    batch_size: int | None = option(None, at_least=1, identity=True)
    learning_rate: float | None = option(None, above=0, identity=True)
    epochs: int | None = option(None, at_least=1, identity=True)


@dataclass(kw_only=True)
class SearchOptions(FinetuningSetup):
    """Options of `bert-tf search`; the defaults are the settings that the paper tries.

    Attributes:
        batch_size: batch sizes to try, over all devices.
        learning_rate: peak learning rates to try; by default 5e-5, 4e-5, 3e-5 and 2e-5, with
            --features_only 3e-3, 1e-3, 3e-4 and 1e-4.
        epochs: numbers of epochs to try.
        trials: number of settings to try, proposed by Optuna's TPE from the scores so far: one of
            the batch sizes, and any learning rate and number of epochs between the smallest and
            the largest given. By default every combination of the values given.
        seeds: runs of each setting, each with the next seed; their mean score ranks it.
        keep_models: number of settings, the best first, whose best model is kept beside best/;
            `bert-tf ensemble` averages several.
    """

    batch_size: list[int] = option(factory=lambda: [16, 32], at_least=1)
    learning_rate: list[float] = option(factory=list, above=0)
    epochs: list[int] = option(factory=lambda: [2, 3, 4], at_least=1)
    trials: int | None = option(None, at_least=1)
    keep_models: int = option(1, at_least=1)

    @property
    def rates(self) -> list[float]:
        """The learning rates to try; a head on frozen vectors learns faster than a whole BERT."""
        if self.learning_rate:
            return self.learning_rate
        return [3e-3, 1e-3, 3e-4, 1e-4] if self.features_only else [5e-5, 4e-5, 3e-5, 2e-5]


def steps_to_profile(given: str | None) -> tuple[int, int] | None:
    """The first and the last step that `--profile` names; None for None.

    Raises:
        InputError: it is not FIRST:LAST, with 1 <= FIRST <= LAST.
    """
    if given is None:
        return None
    parsed = re.fullmatch(r"(\d{1,18}):(\d{1,18})", given)
    if parsed is None or not 1 <= int(parsed[1]) <= int(parsed[2]):
        raise InputError(f"--profile is {given!r}: give FIRST:LAST, such as 10:20")
    return int(parsed[1]), int(parsed[2])


def save_config(options: CheckedOptions, directory: str | Path) -> None:
    """Writes `config.yaml`, from which `--config` repeats the run, into a run directory.

    Values are written as JSON, which is YAML in which a column named "1e3" stays text.
    """
    lines = [
        f"{field.name}: {json.dumps(getattr(options, field.name), ensure_ascii=False)}\n"
        for field in fields(options)
        if field.metadata.get("saved", True)
    ]
    write_text(Path(directory) / "config.yaml", "".join(lines))
