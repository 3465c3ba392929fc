"""The base of every model: inputs, dtype policy, saving and loading."""

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import keras

from bert_tf.checkpoints.weight_names import Head
from bert_tf.config import BertConfig
from bert_tf.errors import InputError, nearest, needing_tensorflow
from bert_tf.extensions import added
from bert_tf.models.compiled_model import refuse_hdf5
from bert_tf.models.loading import load_model
from bert_tf.models.text_model import TextModel
from bert_tf.networks.bert_layer import restore, state_of

_MEANT = {"num_labels": "num_classes", "id2label": "labels"}  # Hugging Face's names: ours
_KEYWORDS = ("seed", "dtype", "name", "trainable", "preprocessor")  # of every model
_OBJECTS = {"encoder", "dense", "dtype", "preprocessor"}  # arguments with a config of their own


class PretrainedModel(TextModel):
    """A functional Keras model that a model directory can hold.

    Subclasses make their layers, wire them, and pass inputs and outputs to `__init__`. The names
    in `arguments` are arguments of their `__init__` and attributes of the same name. All take:

    Args:
        seed: random seed for weight initialization and dropout; None for no fixed seed.
        dtype: Keras dtype policy such as "mixed_bfloat16"; None for a given encoder's, or
            else the global one.
        kwargs: Keras' `name` and `trainable`; others raise InputError, as Keras would drop them.
    """

    arguments: tuple[str, ...] = ("encoder",)
    stored_head: Head | None = None  # what a model directory records of the class; None: nothing
    # Values of config.json that a model of the class does not take.
    unset_config: ClassVar[Mapping[str, Any]] = {
        "id2label": None,
        "feature_layers": None,
        "feature_lstm_layers": 0,
    }
    unused_parts: ClassVar[tuple[str, ...]] = ()  # of the encoder, which no output reads

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
        self.check_inputs(inputs)
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
        # A whole model's HDF5 file would name its class without the package, and nothing finds it.
        if sys._getframe(1).f_code.co_name == "model_metadata":
            file = sys._getframe(2).f_locals.get("filepath")
            path = str(getattr(file, "filename", file))  # of an open file, or a path
            refuse_hdf5(path if path.endswith("5") else "model.h5")
        names = (*self.arguments, "seed", "name", "trainable")
        values = {name: getattr(self, name) for name in names} | {"dtype": self.dtype_policy}
        if self.preprocessor is not None:
            values["preprocessor"] = self.preprocessor
        for name in _OBJECTS & values.keys():
            values[name] = keras.saving.serialize_keras_object(values[name])
        if "config" in values:
            values["config"] = self.config.to_dict()
        more = {"auto": list(self._auto), "layers": state_of(self)}
        return values | {name: value for name, value in more.items() if value}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        values = dict(config)
        for name in _OBJECTS & values.keys():
            values[name] = keras.saving.deserialize_keras_object(values[name])
        if "config" in values:
            values["config"] = BertConfig.from_dict(values["config"])
        trainable = values.pop("trainable", True)
        auto = values.pop("auto", ())
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
    def class_in(cls, config: BertConfig, directory: Path) -> type[Self]:
        """The class to make from a directory that is opened as this one."""
        return cls

    @classmethod
    def arguments_in(cls, directory: Path) -> dict[str, Any]:
        """Arguments of the class that a directory records beside config and weights."""
        return {}

    @classmethod
    def new_of_zeros(cls, config: BertConfig, seed: int | None, dtype: Any, **kwargs: Any) -> Self:
        """Makes a model whose encoder's weights are to be read from a file."""
        raise NotImplementedError

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
            preprocessor: "auto" for the preset's; None for a model of token ids.
            task: name of the task, such as "squad2" (`bert-tf tasks`); None for the preset's, or
                the class's.
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
        with needing_tensorflow("from_preset"):
            (open_preset,) = added("openers")
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
