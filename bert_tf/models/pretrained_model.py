"""The base of every model: inputs, dtype policy, saving and loading."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import keras

from bert_tf.checkpoints.weight_names import Head, encoder_layers, layer_at
from bert_tf.config import BertConfig
from bert_tf.errors import InputError, nearest
from bert_tf.models.text_model import TextModel
from bert_tf.networks.encoder import TransformerBlock
from bert_tf.networks.layer_state import restore, state_of

_MEANT = {"num_labels": "num_classes", "id2label": "labels"}  # Hugging Face's names: ours
_KEYWORDS = ("seed", "dtype", "name", "trainable", "preprocessor")  # of every model


class PretrainedModel(TextModel):
    """A functional Keras model that a model directory can hold.

    Subclasses make their layers, wire them, and pass inputs and outputs to `__init__`. The names
    in `arguments` are arguments of their `__init__` and attributes of the same name. All take:

    Args:
        seed: random seed for weight initialization and dropout; None for no fixed seed.
        dtype: Keras dtype policy such as "mixed_bfloat16"; None for that of an encoder that is
            given, or else the global one.
        kwargs: Keras' `name` and `trainable`; others raise InputError, as Keras would drop them.
    """

    arguments: tuple[str, ...] = ("encoder",)
    stored_head: Head | None = None  # what a model directory records of the class; None: nothing

    def __init__(
        self,
        config: BertConfig,
        inputs: Any,
        outputs: Any,
        seed: int | None,
        dtype: Any,
        **kwargs: Any,
    ):
        self.refuse_unknown(kwargs)
        preprocessor = kwargs.pop("preprocessor", None)
        super().__init__(inputs=inputs, outputs=outputs, **kwargs)
        # Keras ignores a functional model's dtype; `compile` reads it to scale the loss.
        self.dtype_policy = keras.dtype_policies.get(dtype)
        self.config = config
        self.seed = seed
        self.preprocessor = preprocessor
        if self.new_loss:
            self.compile()

    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(inputs, Mapping):  # Keras would take a list in the order of the names
            raise InputError(
                f"{type(self).__name__} is called with {type(inputs).__name__}: give a dict of "
                f"{', '.join(self.input)}. Raw text goes to predict."
            )
        return super().__call__(inputs, *args, **kwargs)

    @staticmethod
    def symbolic_inputs(*more: str, shape: tuple[None, ...] = (None,)) -> dict[str, Any]:
        """Symbolic int32 inputs of an encoder, and more of that shape by name."""
        names = ("token_ids", "segment_ids", "padding_mask", *more)
        return {name: keras.Input(shape, dtype="int32", name=name) for name in names}

    def answering_model(self) -> "PretrainedModel":
        """The model whose outputs answers are made of, of the same layers."""
        return self

    @property
    def label_names(self) -> list[str]:
        """Names of the classes, in the order of the outputs; none by default."""
        return []

    def get_config(self) -> dict[str, Any]:
        names = (*self.arguments, "seed", "name", "trainable")
        values = {name: getattr(self, name) for name in names} | {"dtype": self.dtype_policy}
        if self.preprocessor is not None:
            values["preprocessor"] = self.preprocessor
        for name in {"encoder", "dtype", "preprocessor"} & values.keys():
            values[name] = keras.saving.serialize_keras_object(values[name])
        if "config" in values:
            values["config"] = self.config.to_dict()
        more = {"auto": list(self._auto), "layers": state_of(self)}
        return values | {name: value for name, value in more.items() if value}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        values = dict(config)
        for name in {"encoder", "dtype", "preprocessor"} & values.keys():
            values[name] = keras.saving.deserialize_keras_object(values[name])
        if "config" in values:
            values["config"] = BertConfig.from_dict(values["config"])
        trainable, auto = values.pop("trainable", True), values.pop("auto", ())
        state = values.pop("layers", {})
        model = cls(**values)
        model._auto_of_file = tuple(auto)
        if not trainable:  # True would reach every layer, those that are frozen, too
            model.trainable = False
        restore(model, state)
        return model

    @classmethod
    def refuse_unknown(cls, keywords: Iterable[str], known: Iterable[str] = ()) -> None:
        """Refuses keywords that are neither `known` nor the class's own; proposes the nearest."""
        names = {*known, *_KEYWORDS, *cls.arguments} - {"config", "encoder"}
        for name in sorted(set(keywords) - names):
            meant = _MEANT.get(name)
            near = meant if meant in names else nearest(name, sorted(names))
            cure = f"did you mean {near}?" if near else f"give one of {', '.join(sorted(names))}"
            raise InputError(f"{cls.__name__} takes no {name!r}: {cure}")

    @classmethod
    def from_directory(
        cls,
        directory: str | os.PathLike,
        *,
        allow_new_head: bool = False,
        num_classes: int | None = None,
        labels: Sequence[str] | None = None,
        seed: int | None = None,
        dtype: Any = None,
        **config: Any,
    ) -> Self:
        """Loads this kind of model from a Hugging Face model directory; see `bert_tf.load_model`.

        Args:
            directory: holds config.json and model.safetensors, or tf_model.h5.
            allow_new_head: randomly initialize any missing pooler or head, and replace the head of
                another task or a classifier whose classes differ.
            num_classes: number of classes of a classifier; None for the directory's.
            labels: names of a classifier's classes; None for the directory's.
            seed: random seed for dropout and for weights that are initialized at random.
            dtype: Keras dtype policy such as "mixed_bfloat16"; None for the global one.
            config: values that replace config.json's, such as `hidden_dropout_prob=0.0`, and other
                arguments of the class, such as an encoder's `attention_probabilities=True`.
        """
        from bert_tf.models.loading import load_model

        return load_model(
            directory,
            cls,
            allow_new_head=allow_new_head,
            num_classes=num_classes,
            labels=labels,
            seed=seed,
            dtype=dtype,
            **config,
        )

    @classmethod
    def from_preset(
        cls,
        preset: str | os.PathLike,
        *,
        labels: Sequence[str] | None = None,
        num_classes: int | None = None,
        preprocessor: Any = "auto",
        task: str | None = None,
        max_length: int | None = None,
        seed: int | None = None,
        dtype: Any = None,
        **config: Any,
    ) -> Self:
        """Opens a model with its vocabulary, to be given raw text.

        A head that the preset lacks, or has for other labels, starts with random weights. Raises
        InputError if the preset cannot be used, or lacks its vocabulary.

        Args:
            preset: a model directory, of bert-tf or Hugging Face; or a model of the Hugging Face
                hub, "ORG/NAME" or "ORG/NAME@REVISION", which is downloaded unless it is cached.
            labels: names of the classes of a classifier or tagger; None for the preset's.
            num_classes: number of classes, instead of labels.
            preprocessor: "auto" for that of the preset; None for a model of token ids.
            task: name of the task, such as "squad2" (`bert-tf tasks`); None for the preset's, or
                that of the class.
            max_length: most tokens of a row; None for the task's.
            seed: random seed for dropout and for weights that are initialized at random.
            dtype: Keras dtype policy such as "mixed_bfloat16"; None for the global one.
            config: as of `from_directory`.

        Example::

        ```python
        model = bert_tf.BertClassifier.from_preset("models/base", labels=["bad", "good"])
        model.fit(texts, labels, epochs=3)
        model.classify(["a raw string"])
        ```
        """
        from bert_tf.models.opening import open_preset

        return open_preset(
            cls,
            preset,
            labels=labels,
            num_classes=num_classes,
            preprocessor=preprocessor,
            task=task,
            max_length=max_length,
            seed=seed,
            dtype=dtype,
            **config,
        )


class Encoder(PretrainedModel):
    """A model whose outputs heads read by name; `BertEncoder` has all the call arguments."""

    text_output = "states"
    is_explained = False  # the signature "explain" is of the layers of a `BertEncoder`

    def call(
        self,
        inputs: Any,
        training: bool | None = None,
        mask: Any = None,
        padding: str = "states",
        only: str | None = None,
    ) -> Any:
        outputs = super().call(inputs, training=training, mask=mask)
        return {only: outputs[only]} if only else outputs

    def compute_output_spec(self, inputs: Any, only: str | None = None, **options: Any) -> Any:
        outputs = super().compute_output_spec(inputs)
        return {only: outputs[only]} if only in outputs else outputs

    def embed(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """Vectors of texts: `mean` of their tokens, `cls` and `pooled`, lists of H numbers."""
        return self._answers("embed", x, batch_size)

    def towers(self) -> list[Any]:
        """The encoders with embeddings and blocks that this one is made of."""
        return [self]

    def named_layers(self) -> Iterator[tuple[str, list[keras.layers.Layer]]]:
        """The layers by their names in Hugging Face's format, each of all `towers`."""
        for name, attribute, _ in encoder_layers(self.config):
            yield name, [layer_at(tower, attribute) for tower in self.towers()]

    @property
    def has_attention(self) -> bool:
        """Whether it is made of Transformers."""
        blocks = (block for tower in self.towers() for block in tower.blocks)
        return all(isinstance(block, TransformerBlock) for block in blocks)

    @property
    def rematerialize(self) -> bool:
        """That of each `TransformerBlock`; others refuse it. Set it before the step is traced."""
        return all(block.rematerialize for tower in self.towers() for block in tower.blocks)

    @rematerialize.setter
    def rematerialize(self, rematerialize: bool) -> None:
        if rematerialize and not self.has_attention:
            raise InputError("--rematerialize is for Transformers, not for LSTMs: leave it out")
        for tower in self.towers():
            for block in tower.blocks:
                block.rematerialize = rematerialize

    def freeze_layers(self, number: int) -> None:
        """Freezes the embeddings, which heads may share, and the first `number` blocks.

        Call it before the model gets its `Trainer`.
        """
        for tower in self.towers():
            if not 0 <= number <= len(tower.blocks):
                raise InputError(
                    f"{number} layers cannot be frozen: the encoder has {len(tower.blocks)}, give "
                    f"0 to {len(tower.blocks)}"
                )
            for layer in (tower.embeddings, *tower.blocks[:number]):
                layer.trainable = False
