"""The models of tasks: an encoder with one dense layer on top, or with a text's vector."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras
from keras import ops

from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.checkpoints.weight_names import MULTI_LABEL, SEQUENCES, Head
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.encoder import BertEncoder, Encoder, EncoderWithHead, encoder_for
from bert_tf.networks import ClassificationHead, losses
from bert_tf.networks.bert_layer import part
from bert_tf.networks.heads import mean_over_tokens, take_tokens
from bert_tf.networks.kernels import last_positions

_CLASSIFIER = {"classifier.": "head.dense"}
POOLINGS = ("mean", "cls", "max", "last")


class TaskModel(EncoderWithHead):
    """An encoder with dropout and a dense layer on one of its outputs.

    Inputs: the encoder's. Output: float32 whatever the compute dtype.

    Methods such as `classify` answer raw text `x`, as of `fit`, `batch_size` texts at a time.

    Args:
        encoder: a `BertEncoder` or another encoder, or a `BertConfig` for a new one.
        dropout: dropout rate of the layer's input; None for the config's.
        seed, dtype, kwargs: see `PretrainedModel`.
    """

    reads_pooler = True  # else the sequence output, with this `padding` of `BertEncoder`
    padding = "states"
    head_name = "classifier"  # its seed follows from it
    new_loss = staticmethod(losses.classes_loss)
    output_kind: Any = "classes"
    arguments: tuple[str, ...] = ("encoder", "dropout")
    unset_config: ClassVar[Mapping[str, Any]] = {"id2label": None}
    is_of_task = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.stored_head is None or cls.stored_head.is_own:
            head = Head(cls.__name__, _CLASSIFIER, reads_pooler=cls.reads_pooler, is_own=True)
            cls.stored_head = head

    def __init__(
        self,
        encoder: Encoder | BertConfig,
        dropout: float | None = None,
        seed: int | None = None,
        dtype: Any = None,
        *,
        units: int = 1,
        **kwargs: Any,
    ):
        encoder, dtype = encoder_for(encoder, seed, dtype, of_task=True)
        if dropout is None:
            dropout = self.default_dropout(encoder.config)
        head = ClassificationHead(
            encoder.config, units, dropout, **part(self.head_name, seed, dtype)
        )
        inputs, outputs = self.wire(encoder, head)
        super().__init__(encoder.config, inputs, outputs, seed, dtype, **kwargs)
        self.dropout = head.dropout.rate
        self.encoder = encoder
        self.head = head

    @staticmethod
    def default_dropout(config: BertConfig) -> float:
        """Dropout rate of a head that is given none."""
        return config.head_dropout

    @classmethod
    def wire(cls, encoder: Any, head: ClassificationHead) -> tuple[dict[str, Any], Any]:
        """Symbolic inputs by name, and the output."""
        inputs = cls.symbolic_inputs()
        return inputs, head(cls.encode(encoder, inputs))

    @classmethod
    def encode(cls, encoder: Any, inputs: dict[str, Any]) -> Any:
        """The output of the encoder under the dense layer."""
        if cls.reads_pooler:
            return encoder(inputs, only="pooled_output")["pooled_output"]
        return encoder(inputs, padding=cls.padding)["sequence_output"]


class _LabelModel(TaskModel):
    """A model whose units are labels: see `BertClassifier`."""

    arguments = ("encoder", "num_classes", "labels", "dropout")
    fewest = 2  # labels

    def __init__(
        self,
        encoder: Encoder | BertConfig,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        dropout: float | None = None,
        **kwargs: Any,
    ):
        if isinstance(labels, str):
            raise InputError(f"labels is {labels!r:.40}: give a list of names.")
        if labels is not None:
            labels = [str(label) for label in labels]
            if len(set(labels)) < len(labels):
                raise InputError(f"A label comes twice in {labels}: give each once.")
            if num_classes not in (None, len(labels)):
                raise InputError(f"There are {len(labels)} labels for {num_classes} classes.")
            num_classes = len(labels)
        if num_classes is None:
            raise InputError("A classifier needs its classes: give labels=[...] or num_classes.")
        if num_classes < self.fewest:
            raise InputError(
                f"A classifier of {num_classes} class always gives the same answer: give 2 classes "
                "or more, or use BertRegressor to predict a number."
            )
        super().__init__(encoder, dropout, units=num_classes, **kwargs)
        self.num_classes = num_classes
        self.labels = labels

    @property
    def label_names(self) -> list[str]:
        """The labels, or LABEL_0, LABEL_1, ... as Hugging Face writes."""
        return self.labels or [f"LABEL_{number}" for number in range(self.num_classes)]


@keras.saving.register_keras_serializable(package="bert_tf")
class BertClassifier(_LabelModel):
    """The classifier of a text or a pair of texts, from the pooled output (paper, section 4.1).

    Output: logits [B, C]. Raises InputError if there are neither a number of classes nor labels,
    the two disagree, a label comes twice, or there are fewer than two classes.

    Args:
        encoder: see `TaskModel`, also for `dropout`, `seed` and `dtype`.
        num_classes: C, at least 2; None for the number of labels.
        labels: names of the classes, in the order of their ids; None for no names.
    """

    text_output = "rows"
    stored_head = Head(SEQUENCES, _CLASSIFIER, "single_label_classification")

    def classify(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """The label (or labels) of each text or pair, and the probabilities of all labels."""
        return self._answers("classify", x, batch_size)

    def explain(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """Each text's label, and what each word piece adds to its logit (docs/signatures.md)."""
        return self._answers("explain", x, batch_size, signature="explain")


@keras.saving.register_keras_serializable(package="bert_tf")
class BertMultiLabelClassifier(_LabelModel):
    """Any number of labels, by the sigmoid of each logit; as `BertClassifier`, but one will do."""

    text_output = "rows"
    stored_head = Head(SEQUENCES, _CLASSIFIER, MULTI_LABEL)
    fewest = 1
    new_loss = staticmethod(losses.labels_loss)
    output_kind = "labels"
    classify = BertClassifier.classify
    explain = BertClassifier.explain


@keras.saving.register_keras_serializable(package="bert_tf")
class BertTagger(_LabelModel):
    """A label for every token (paper, section 5.3), logits [B, T, C]; see `BertClassifier`."""

    reads_pooler = False
    stored_head = Head("BertForTokenClassification", _CLASSIFIER, reads_pooler=False)
    padding = "zeros"
    new_loss = staticmethod(losses.classes_loss)
    output_kind = "words"

    @staticmethod
    def default_dropout(config: BertConfig) -> float:
        return config.hidden_dropout_prob if config.is_distilbert else config.head_dropout

    def tag(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """The entities and the labelled words of each text.

        `x`: texts as strings, whose punctuation marks are words of their own, or lists of words.
        """
        return self._answers("tag", x, batch_size, splits_words=True)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertRegressor(TaskModel):
    """A number for a text or a pair of texts, [B], from the pooled output: see `TaskModel`."""

    text_output = "rows"
    stored_head = Head(SEQUENCES, _CLASSIFIER, "regression")
    head_name = "regressor"
    new_loss = staticmethod(losses.squared_error)
    output_kind = "numbers"

    @classmethod
    def wire(cls, encoder: Any, head: ClassificationHead) -> tuple[dict[str, Any], Any]:
        inputs, outputs = super().wire(encoder, head)
        return inputs, ops.squeeze(outputs, axis=-1)  # (B,)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertSpanClassifier(TaskModel):
    """A start and an end vector that mark an answer in its context (paper, section 4.2).

    `create_model` in the original's run_squad.py, `BertForQuestionAnswering` of Hugging Face: no
    dropout but a DistilBERT's, and padding is among the tokens that the loss chooses from.

    Output: logits [B, T, 2]: how well the answer starts and ends at each token; at [CLS], how well
    no answer fits. Arguments: see `TaskModel`.
    """

    reads_pooler = False
    stored_head = Head(
        "BertForQuestionAnswering", {"qa_outputs.": "head.dense"}, reads_pooler=False
    )
    padding = "zeros_at_inference"
    head_name = "span"
    new_loss = losses.SpanCrossentropy
    output_kind = "spans"
    arguments = ("encoder",)

    def __init__(self, encoder: BertEncoder | BertConfig, **kwargs: Any):
        super().__init__(encoder, units=2, **kwargs)

    @staticmethod
    def default_dropout(config: BertConfig) -> float:
        return config.qa_dropout

    def answer(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """The best answers to each question, with their probabilities and positions.

        `x`: (questions, contexts), or a dict or data frame of `question` and `context`.
        """
        return self._answers("answer", x, batch_size)

    @classmethod
    def wire(cls, encoder: Any, head: ClassificationHead) -> tuple[dict[str, Any], Any]:
        inputs = cls.symbolic_inputs()
        states = cls.encode(encoder, inputs)
        summary_first = encoder.config.architecture.summary_first
        return inputs, head(summary_first(states, inputs["padding_mask"], head.dtype_policy))


@keras.saving.register_keras_serializable(package="bert_tf")
class BertChooser(TaskModel):
    """A score for each of N choices, from the pooled output (paper, section 4.4); see `TaskModel`.

    Inputs: the encoder's, but [B, N, T]. Output: logits [B, N].
    """

    text_output = "rows"
    stored_head = Head("BertForMultipleChoice", _CLASSIFIER)

    def choose(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """The number of the best choice for each context, and the probabilities of all.

        `x`: (contexts, lists of choices), or a dict or data frame of `context` and `choices`.
        """
        return self._answers("choose", x, batch_size)

    @classmethod
    def wire(cls, encoder: Any, head: ClassificationHead) -> tuple[dict[str, Any], Any]:
        fold = FoldChoices(name="fold")
        unfold = _UnfoldChoices(name="unfold", dtype="float32")
        inputs = cls.symbolic_inputs(shape=(None, None))
        rows = {name: fold(x) for name, x in inputs.items()}  # (B * N, T)
        scores = head(cls.encode(encoder, rows))  # (B * N, 1)
        return inputs, unfold(scores, inputs["token_ids"])  # (B, N)


@keras.saving.register_keras_serializable(package="bert_tf")
class BertSentenceEncoder(EncoderWithHead):
    """A vector for each text (Reimers and Gurevych 2019, "Sentence-BERT").

    Inputs: the encoder's, but [B, N, T]: N texts that are compared. Output: float32 [B, N, W].
    Raises InputError for an unknown `pooling`, or a `dense` that is no dense layer.

    Args:
        encoder: a `BertEncoder` or another encoder, or a `BertConfig` for a new one.
        pooling: how tokens become a text's vector: "mean" or "max" over its tokens, the vector of
            [CLS] ("cls", or the token that has seen all others), or of the "last" token.
        normalize: whether vectors have length 1.
        dense: a `keras.layers.Dense` between pooling and normalization, whose units are W, as the
            module Dense of sentence-transformers; None for none. A model directory holds one with
            the activation "tanh" or "linear".
        seed, dtype, kwargs: see `PretrainedModel`.
    """

    arguments = ("encoder", "pooling", "normalize", "dense")
    text_output = "vectors"
    stored_head = BertEncoder.stored_head
    unused_parts = ("pooler.",)

    def __init__(
        self,
        encoder: Encoder | BertConfig,
        pooling: str = "mean",
        normalize: bool = True,
        seed: int | None = None,
        dtype: Any = None,
        *,
        dense: keras.layers.Dense | None = None,
        **kwargs: Any,
    ):
        if pooling not in POOLINGS:
            raise InputError(f"pooling is {pooling!r}: give one of {', '.join(POOLINGS)}")
        if dense is not None and not isinstance(dense, keras.layers.Dense):
            raise InputError(f"dense is {dense!r:.40}: give a keras.layers.Dense, or None")
        encoder, dtype = encoder_for(encoder, seed, dtype)
        fold = FoldChoices(name="fold")
        inputs = self.symbolic_inputs(shape=(None, None))
        rows = {name: fold(x) for name, x in inputs.items()}  # (B * N, T)
        states = encoder(rows, padding="zeros")["sequence_output"]  # (B * N, T, W)
        is_last = dense is None
        pool = _SentencePooling(encoder.config, pooling, normalize and is_last, name="pooling")
        outputs = pool(states, rows["padding_mask"], inputs["token_ids"])
        if dense is not None:
            outputs = dense(outputs)
        if normalize and not is_last:
            outputs = keras.layers.UnitNormalization(name="normalize", dtype="float32")(outputs)
        super().__init__(encoder.config, inputs, outputs, seed, dtype, **kwargs)
        self.encoder = encoder
        self.pooling = pooling
        self.normalize = normalize
        self.dense = dense

    @classmethod
    def arguments_in(cls, directory: Path) -> dict[str, Any]:
        recorded = read_sentence_files(directory)
        if "dense" in recorded:
            recorded["dense"] = keras.layers.Dense(**recorded["dense"], dtype="float32")
        return {name: recorded[name] for name in cls.arguments if name in recorded}

    def embed(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """The `vector` of each text, a list of W numbers."""
        return self._answers("embed", x, batch_size)


class FoldChoices(keras.layers.Layer):
    """Makes a row of every choice: [B, N, T] -> [B * N, T]."""

    def call(self, x: Any) -> Any:
        batch, choices, length = ops.shape(x)
        return ops.reshape(x, (batch * choices, length))

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor((None, x.shape[2]), dtype=x.dtype)


class _UnfoldChoices(keras.layers.Layer):
    """The inverse for scores: [B * N, 1] -> [B, N], as in a tensor [B, N, T]."""

    def call(self, scores: Any, choices: Any) -> Any:
        return ops.reshape(scores, tuple(ops.shape(choices))[:2])

    def compute_output_spec(self, scores: Any, choices: Any) -> Any:
        return keras.KerasTensor(choices.shape[:2], dtype="float32")


class _SentencePooling(keras.layers.Layer):
    """Vectors of texts from vectors of their tokens; arguments as of `BertSentenceEncoder`.

    Takes states [B * N, T, W], their padding mask, int [B * N, T], 0 at padding, and a tensor
    [B, N, T] for the shape of the output. Returns float32 [B, N, W].
    """

    def __init__(self, config: BertConfig, pooling: str, normalize: bool, **kwargs: Any):
        super().__init__(**{"dtype": "float32", **kwargs})
        self.config = config
        self.pooling = pooling
        self.normalize = normalize

    def call(self, states: Any, padding_mask: Any, like: Any) -> Any:
        if self.pooling == "mean":
            x = mean_over_tokens(states, padding_mask)
        elif self.pooling == "max":
            is_token = ops.expand_dims(ops.not_equal(padding_mask, 0), 2)
            x = ops.max(ops.where(is_token, states, -1e9), axis=1)
        elif self.pooling == "last":
            x = take_tokens(states, last_positions(padding_mask)[:, None])
        else:
            x = self.config.architecture.summary(states, padding_mask)
        if self.normalize:  # an epsilon as PyTorch's `normalize` has
            x = x / ops.maximum(ops.sqrt(ops.sum(x * x, axis=-1, keepdims=True)), 1e-12)
        batch, number = ops.shape(like)[:2]
        return ops.reshape(x, (batch, number, states.shape[-1]))

    def compute_output_spec(self, states: Any, padding_mask: Any, like: Any) -> Any:
        return keras.KerasTensor((*like.shape[:2], states.shape[-1]), dtype="float32")

    def get_config(self) -> dict[str, Any]:
        own = {"pooling": self.pooling, "normalize": self.normalize}
        return {**super().get_config(), "config": self.config.to_dict(), **own}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return cls(**{**config, "config": BertConfig.from_dict(config["config"])})
