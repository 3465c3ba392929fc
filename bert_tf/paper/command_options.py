"""The options of commands for the paper's comparisons, which extend those of the commands."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from bert_tf.errors import InputError
from bert_tf.files.storage import is_remote
from bert_tf.options import CheckedOptions, option


@dataclass(kw_only=True)
class FeatureOptions(CheckedOptions):
    """Frozen encoders and BiLSTMs, as in the paper's comparisons."""

    features_only: str | None = option(None, alone="concat_last_four")
    """train on vectors of these layers of the frozen encoder, computed once and kept in the run
    directory until its end: concat_last_four by default, others of `bert-tf features`, separated by
    commas (paper, section 5.3), or mix, a weighted sum of all layers whose weights are learned
    (ELMo's). A tagger gets a BiLSTM of two layers, other tasks a dense layer. The learning rate is
    then 1e-3 by default."""
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

    def usual_rates(self, rates: list[float], *, tried: bool) -> list[float]:
        if self.features_only is None:
            return rates
        # A head on frozen vectors learns faster than a whole BERT.
        return [3e-3, 1e-3, 3e-4, 1e-4] if tried else [1e-3]

    def config_changes(self, model_class: type) -> dict[str, Any]:
        from bert_tf.models.task_models import BertTagger, TaskModel

        layers, lstms = None, int(self.bilstm)
        if self.features_only is not None:
            layers = self.features_only.split(",")
            lstms = max(2 * issubclass(model_class, BertTagger), lstms)
        if (layers or lstms) and not issubclass(model_class, TaskModel):
            name = "features_only" if layers else "bilstm"
            raise InputError(f"--{name} is not for vectors of texts: leave it out")
        return {"feature_layers": layers, "feature_lstm_layers": lstms}

    def begin_training(self, run: Any, model: Any) -> Callable[[], object]:
        """Keeps the vectors of a frozen encoder; a run that stops finds them again."""
        if self.features_only is None:
            return lambda: None
        from bert_tf.paper.feature_cache import FeatureCache

        options: Any = self
        is_kept = run.is_chief and not options.dry_run and not is_remote(options.output)
        # It is deleted at the end: a name that no folder of the user's has.
        folder = run.directory / ".bert-tf-features" if is_kept else None
        cache = FeatureCache(model.encoder.features, folder)
        model.encoder.features.remember = cache.remember

        def end() -> None:
            if cache.full:
                run.notice("some vectors found no room on the disk: computed at every step")
            cache.close()

        return end


@dataclass(kw_only=True)
class ObjectiveOptions(CheckedOptions):
    """Words to predict, those of the paper's comparisons included."""

    objective: Literal["mlm+nsp", "mlm", "ltr", "rtl", "ltr+rtl", "bilm"] | None = None
    """words to predict: mlm+nsp, masked words, and next sentences, by default on pairs of
    sentences; mlm, masked words alone, by default on other shards; ltr, each token from those
    before it; rtl, from those after it; ltr+rtl, a model for each, side by side; bilm, both with
    LSTMs in place of Transformers, as in ELMo. A model keeps the side that it sees; with --model,
    that is the default."""

    @property
    def to_finetune(self) -> list[str]:
        """Options of the command that follows: ELMo's LSTMs are used so."""
        return ["--features_only", "mix"] if self.objective == "bilm" else []
