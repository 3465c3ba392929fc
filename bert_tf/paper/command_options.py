"""Options for the paper's comparisons, which the commands' own options are extended by."""

from dataclasses import dataclass
from typing import Any, Literal

from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, option


@dataclass(kw_only=True)
class FeatureOptions(CheckedOptions):
    """Frozen encoders and BiLSTMs, as in the paper's comparisons."""

    features_only: str | None = option(None, alone="concat_last_four")
    """freeze the encoder and train on the vectors of these layers, which are computed once and kept
    in the run directory until the run ends: concat_last_four by default, other --layers of `bert-tf
    features`, separated by commas (paper, section 5.3), or mix, a learned weighted sum of all
    layers, as in ELMo. Taggers get a BiLSTM of two layers, other tasks a dense layer. The default
    learning rate is then 1e-3."""
    bilstm: bool = False
    """put a randomly initialized BiLSTM between the encoder and the head, and train it with both
    (paper, table 5); with --features_only, on the frozen vectors of any task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        options: Any = self  # the command's own, too
        if self.features_only is None:
            return
        if options.jit_compile is True or options.strategy == "tpu":
            raise InputError(
                "--features_only reads vectors from the disk, which neither XLA nor TPUs can: "
                "leave --jit_compile and --strategy tpu out"
            )
        if options.lora_rank is not None:
            raise InputError("--features_only freezes the whole encoder: leave --lora_rank out")

    def usual_rates(self, rates: list[float], *, tried: bool) -> list[float]:
        if self.features_only is None:
            return rates
        # A head on frozen vectors learns faster than a whole BERT.
        return [3e-3, 1e-3, 3e-4, 1e-4] if tried else [1e-3]

    def config_changes(self, model_class: type) -> dict[str, Any]:
        from bert_tf.models.task_models import BertTagger, TaskModel

        layers = None
        lstms = int(self.bilstm)
        if self.features_only is not None:
            layers = self.features_only.split(",")
            lstms = max(2 * issubclass(model_class, BertTagger), lstms)
        if (layers or lstms) and not issubclass(model_class, TaskModel):
            name = "features_only" if layers else "bilstm"
            raise InputError(f"--{name} is not for vectors of texts: leave it out")
        return {"feature_layers": layers, "feature_lstm_layers": lstms}


@dataclass(kw_only=True)
class ObjectiveOptions(CheckedOptions):
    """Pre-training objectives, including the ones that the paper compares."""

    objective: Literal["mlm+nsp", "mlm", "ltr", "rtl", "ltr+rtl", "bilm"] | None = None
    """pre-training objective: mlm+nsp, masked language modelling and next-sentence prediction, the
    default for sentence pairs; mlm, masked language modelling only, the default for other shards;
    ltr or rtl, left-to-right or right-to-left language modelling; ltr+rtl, both, with an encoder
    for each; bilm, both with LSTMs instead of Transformers, as in ELMo. With --model, the model's
    own direction is the default and cannot be changed."""

    @property
    def to_finetune(self) -> list[str]:
        """Options of the command that follows: ELMo's LSTMs are used so."""
        return ["--features_only", "mix"] if self.objective == "bilm" else []
