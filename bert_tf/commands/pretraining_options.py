"""Options of a pre-training."""

from dataclasses import dataclass
from typing import Any, Literal

from bert_tf.commands.command import CommandOptions
from bert_tf.errors import InputError
from bert_tf.options import PathName, extended, option
from bert_tf.training.training_options import TeacherOptions, TrainingOptions
from bert_tf.training.warmup import pretraining_warmup_steps

LONG_SHARE = 0.1  # of the steps, on long sequences, as in the paper (section A.2)
LATE_SHARE = 0.5  # of the steps, with large batches, where a run has them and does not say
_LEAST_SHARE = 0.0001  # of mixed shards


@extended("pretraining options")
@dataclass(kw_only=True)
class PretrainingOptions(CommandOptions, TrainingOptions, TeacherOptions):
    """Options of `bert-tf pretrain`; the defaults are the paper's (section A.2) except for size."""

    shards: PathName = option(path=True)
    """folder that `bert-tf shards` wrote, or of TFRecord files of the original script."""
    mix_shards: list[str] = option(factory=list, identity=False)
    """further shards to mix in, each with its share of the examples, such as books/=0.3 code/=0.1;
    --shards give the rest, and all examples of the evaluation."""
    long_shards: PathName | None = option(None, path=True)
    """shards of longer sequences for the last steps of the run. Short sequences cost less, so most
    steps use them (paper, section A.2: 128 tokens, then 512)."""
    long_share: float | None = option(None, above=0, below=1, identity=False)
    """share of the steps that use `long_shards`; 0.1 by default."""
    long_gradient_accumulation_steps: int | None = option(None, at_least=1, identity=False)
    """micro-batches per device on `long_shards`; by default as many as on `shards`."""
    size: str | None = option(None, first=True, identity=False)
    """size of a new model: tiny (2 layers, 128 wide), mini (4, 256), small (4, 512), medium (8,
    512), base (12, 768) or large (24, 1024); layers, width and attention heads, such as 3x768x12;
    or a config.json; small by default."""
    model: PathName | None = option(None, path=True, model=True)
    """model directory to start from instead of random weights, or a model of the Hugging Face hub,
    ORG/NAME."""
    tokenizer: PathName | None = option(None, path=True)
    """tokenizer folder or vocab.txt of the shards; only needed for shards of the original
    script."""
    objective: Literal["mlm+nsp", "mlm"] | None = None
    """words to predict: mlm+nsp, masked words, and next sentences, by default on pairs of
    sentences; mlm, masked words alone, by default on other shards."""
    dropout: float | None = option(None, at_least=0, below=1, identity=False)
    """dropout of hidden states and attention; by default the config's, 0.1 for a named size. A
    short run on much text learns more with 0."""
    initializer_range: float | None = option(None, above=0, identity=False)
    """standard deviation of the truncated normal initializer; by default the config's, 0.02 for a
    named size. Narrow models learn sooner with more, up to 1 / sqrt(hidden size)."""
    batch_size: int = option(64, at_least=1)
    """examples per step, over all devices."""
    late_batch_size: int | None = option(None, at_least=1)
    """examples per step in the last steps, a multiple of batch_size (batches grow in cramming,
    Geiping and Goldstein 2023, and in ModernBERT, Warner et al. 2024). They are cut into more
    micro-batches, so memory stays the same."""
    late_share: float | None = option(None, above=0, below=1)
    """share of the steps that use `late_batch_size`; 0.5 by default."""
    learning_rate: float = option(1e-4, above=0)
    """peak learning rate."""
    steps: int = option(100_000, at_least=1)
    """number of training steps."""
    warmup_steps: int | None = option(None, at_least=0)
    """steps of linear warm-up; by default a tenth of the steps, at most the paper's 10,000."""
    evaluate_every: int = option(1000, at_least=1)
    """steps between two evaluations on the held-out shards; best/ is the model with the lowest
    loss, on `long_shards` or with `late_batch_size` if given."""
    evaluation_batches: int = option(50, at_least=1)
    """maximum number of held-out batches per evaluation."""
    masked_lm_prob: float | None = option(None, above=0, below=1)
    """share of the tokens to mask and predict, for shards made with --masking dynamic; the default
    of this and the next four options is what the shards were made with."""
    mask_token_share: float | None = option(None, at_least=0, at_most=1)
    """share of the masked tokens to replace by [MASK]."""
    random_token_share: float | None = option(None, at_least=0, at_most=1)
    """share of the masked tokens to replace by a random token; the rest stay unchanged."""
    whole_word_masking: bool | None = None
    """mask all pieces of a word or none (true or false)."""
    max_ngram: int | None = option(None, at_least=1)
    """longest run of whole words to mask."""
    skip_corrupt: bool = option(False, identity=False)
    """check all records before training; skip and count corrupt ones."""
    data_service: str | None = option(None, identity=False)
    """address of a tf.data service that prepares the training batches, grpc://HOST:PORT."""
    watch_text: list[str] = option(factory=list, identity=False)
    """texts with [MASK]; after each evaluation TensorBoard's text tab shows the model's five best
    words for each mask. By default, texts of the held-out shards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("size", "initializer_range"):
            if self.model is not None and getattr(self, name) is not None:
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
        alternatives = [
            ("mix_shards", "long_shards"),
            ("mix_shards", "data_service"),
            ("late_batch_size", "long_shards"),
        ]
        for name, other in alternatives:
            if getattr(self, name) and getattr(self, other) is not None:
                raise InputError(f"--{name} and --{other} cannot be combined: leave one out")
        if (share := sum(self.mixed.values())) > 1 - _LEAST_SHARE:
            raise InputError(
                f"--mix_shards has {share:g} of the examples, which leaves none for --shards: give "
                "less than 1"
            )
        late = self.late_batch_size
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
        # As if left out, so that a run resumes with and without them.
        if self.long_share == LONG_SHARE:
            self.long_share = None
        if self.late_share == LATE_SHARE:
            self.late_share = None

    def implied(self) -> dict[str, Any]:
        return {**super().implied(), "warmup_steps": pretraining_warmup_steps(self.steps)}

    @property
    def mixed(self) -> dict[str, float]:
        """The folders of `mix_shards`, and their shares."""
        shares: dict[str, float] = {}
        for entry in self.mix_shards:
            folder, _, number = entry.rpartition("=")
            try:
                share = float(number)
            except ValueError:
                share = 0.0
            if not folder or not _LEAST_SHARE <= share < 1:
                raise InputError(
                    f"--mix_shards {entry}: give a folder and its share of the examples, from "
                    f"{_LEAST_SHARE} to 1, such as books/=0.3"
                )
            if folder.rstrip("/") in {path.rstrip("/") for path in (self.shards, *shares)}:
                raise InputError(f"--mix_shards {entry}: the folder is given twice: name it once")
            shares[folder] = share
        return shares

    @property
    def to_finetune(self) -> list[str]:
        """Options of `bert-tf finetune` that the model is used with."""
        return []

    @property
    def mean_batch_size(self) -> float:
        """Examples per step, on average over the run."""
        if self.late_batch_size is None:
            return self.batch_size
        share = self.late_share or LATE_SHARE
        return self.batch_size + share * (self.late_batch_size - self.batch_size)
