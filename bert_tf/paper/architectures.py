"""The encoders of the paper's comparisons, as architectures: see `bert_tf.extensions`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from bert_tf.config import BertConfig
from bert_tf.extensions import Architecture


class OneSided(Architecture):
    """Language models, which predict each token from those on one side, or from each side."""

    words_class = "BertLMHeadModel"
    sides: ClassVar[str]  # `attention_direction` of an encoder, or of two, that sees as much

    def summary(self, states: Any, padding_mask: Any) -> Any:
        from bert_tf.paper.summary import summary

        return summary(states, padding_mask, self.sides)

    def summary_first(self, states: Any, padding_mask: Any, dtype: Any) -> Any:
        from bert_tf.paper.summary import SummaryFirst

        return SummaryFirst(self.sides, dtype=dtype, name="summary_first")(states, padding_mask)

    def stored_prefixes(self, name: str) -> list[str]:
        return [f"{self.direction}."]

    @classmethod
    def make_examples(cls, inputs: Any) -> tuple[Any, Any, Any]:
        from bert_tf.paper.next_tokens import next_tokens

        return next_tokens(inputs, cls.predicts)

    @staticmethod
    def pretraining_class() -> Any:
        from bert_tf.paper.language_model import BertLanguageModel

        return BertLanguageModel


class LeftToRight(OneSided):
    """Tokens attend to those up to themselves: Hugging Face's decoders."""

    direction = sides = "left_to_right"
    marks: ClassVar = {"is_decoder": True}
    towers = (direction,)
    objective = "ltr"
    predicts: ClassVar = {"ltr": -1}

    @staticmethod
    def is_seen(position: Any, other: Any) -> Any:
        return position <= other

    def summary_positions(self, padding_mask: Any) -> Any:
        from bert_tf.networks.kernels import last_positions

        return last_positions(padding_mask)

    def stored_prefixes(self, name: str) -> list[str]:
        # It reads its last token here; Hugging Face's decoders read [CLS].
        is_hidden = name.startswith(("pooler.", "qa_outputs."))
        return super().stored_prefixes(name) if is_hidden else [""]


class RightToLeft(OneSided):
    """Tokens attend to those from themselves on; no other library has such a class."""

    direction = sides = "right_to_left"
    marks: ClassVar = {"model_type": "bert_right_to_left"}
    towers = (direction,)
    objective = "rtl"
    predicts: ClassVar = {"rtl": 1}

    @staticmethod
    def is_seen(position: Any, other: Any) -> Any:
        return position >= other

    def summary_first(self, states: Any, padding_mask: Any, dtype: Any) -> Any:
        return states  # [CLS] has seen all


class SideBySide(OneSided):
    """One encoder for each side (paper, section 5.1)."""

    direction = sides = "left_to_right+right_to_left"
    marks: ClassVar = {"model_type": f"bert_{direction}"}
    towers: ClassVar[tuple[str, ...]] = (LeftToRight.direction, RightToLeft.direction)
    width = 2
    objective = "ltr+rtl"
    predicts = LeftToRight.predicts | RightToLeft.predicts

    def encoder_class(self) -> Any:
        from bert_tf.paper.encoders import TwoEncoders

        return TwoEncoders

    def stored_prefixes(self, name: str) -> list[str]:
        if name.startswith(("embeddings.", "encoder.", "pooler.", "cls.")):
            return [f"{tower}." for tower in self.towers]
        return super().stored_prefixes(name)

    def encoder_products(self, length: float) -> float | None:
        from bert_tf.models.cost import transformer_products

        return 2 * transformer_products(self.config, length)


class Recurrent(SideBySide):
    """LSTMs in both directions, on the same embeddings (Peters et al. 2018)."""

    direction = "recurrent"
    marks: ClassVar = {"model_type": "bert_recurrent"}
    towers: ClassVar[tuple[str, ...]] = (direction,)
    objective = "bilm"
    reads_packed_rows = False

    def encoder_class(self) -> Any:
        from bert_tf.paper.encoders import LstmEncoder

        return LstmEncoder

    def layer_names(self) -> Any:
        from bert_tf.checkpoints.weight_names import EMBEDDINGS, EncoderNames, Layer

        shape = ("hidden_size", str(4 * self.config.hidden_size))
        embeddings = ("embeddings.word_embeddings", "embeddings.LayerNorm")
        return EncoderNames(
            embeddings={name: EMBEDDINGS[name] for name in embeddings},
            block={f"{x}_lstm": Layer(shape, x) for x in ("forward", "backward")},
            pooler={},
        )

    def weight_shapes(self, name: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]] | None:
        if not name.endswith("_lstm"):
            return None
        kernels = {f"{name}.{kernel}": shape for kernel in ("kernel", "recurrent_kernel")}
        return {**kernels, f"{name}.bias": shape[1:]}

    def stored_prefixes(self, name: str) -> list[str]:
        return OneSided.stored_prefixes(self, name)

    def encoder_products(self, length: float) -> float | None:
        width = self.config.hidden_size
        return self.config.num_hidden_layers * length * 2 * 4 * width * 2 * width


class OnFeatures(Architecture):
    """A frozen encoder's chosen layers, or a BiLSTM, under the head of a task."""

    _of_encoder = (
        "direction",
        "marks",
        "towers",
        "width",
        "is_seen",
        "summary_positions",
        "encoder_class",
        "layer_names",
        "weight_shapes",
        "stored_prefixes",
        "encoder_products",
    )

    def __init__(self, config: BertConfig, encoder: Architecture):
        super().__init__(config)
        for name in self._of_encoder:
            setattr(self, name, getattr(encoder, name))

    def on_encoder(self, encoder: Any, seed: int | None, dtype: Any) -> Any:
        from bert_tf.networks.bert_layer import part
        from bert_tf.paper.feature_encoder import FeatureEncoder

        layers = self.config.feature_layers
        lstms = self.config.feature_lstm_layers
        return FeatureEncoder(encoder, layers, lstms, **part("feature_encoder", seed, dtype))

    @contextmanager
    def keeping_vectors(
        self, encoder: Any, folder: Path | None, notice: Callable[[str], object]
    ) -> Iterator[None]:
        if encoder.features is None:
            yield
            return
        from bert_tf.paper.feature_cache import FeatureCache

        cache = FeatureCache(encoder.features, folder)
        encoder.features.remember = cache.remember
        yield  # after an error the folder stays, for the run that goes on
        if cache.full:
            notice("some vectors found no room on the disk: computed at every step")
        cache.close()

    def task_products(self, length: float, classes: int) -> float | None:
        from bert_tf.paper.cost import task_products

        return task_products(self.config, length, classes)


_ALL = (LeftToRight, RightToLeft, SideBySide, Recurrent)
DIRECTIONS = {architecture.objective: architecture.direction for architecture in _ALL}
PARTS = {"lstm.": "LSTM", "mix.": "mix of layers"}
