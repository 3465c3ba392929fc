"""The BERT encoder as a Keras model, and the bases of encoders and of models on them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import keras
from keras import ops

from bert_tf.checkpoints.weight_names import Head, encoder_layers, layer_at
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.pretrained_model import PretrainedModel
from bert_tf.networks.bert_layer import child_seed, choose_kernels, part
from bert_tf.networks.encoder import BertEmbeddings, TransformerBlock, mask_of
from bert_tf.networks.heads import Pooler
from bert_tf.networks.kernels import Kernels, Positions

PADDINGS = ("states", "zeros", "zeros_at_inference")


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
        if "position_ids" in inputs:  # rows of several instances have no vector of their own
            outputs = {name: x for name, x in outputs.items() if name != "pooled_output"}
        return {only: outputs[only]} if only in outputs else outputs

    def embed(self, x: Any, batch_size: int = 32) -> list[dict[str, Any]]:
        """Vectors of texts: `mean` of their tokens, `cls` and `pooled`, lists of H numbers."""
        return self._answers("embed", x, batch_size)

    @classmethod
    def class_in(cls, config: BertConfig, directory: Path) -> Any:
        """The class of the config's encoder; InputError unless it is this one or `BertEncoder`."""
        stored_class = config.architecture.encoder_class() or BertEncoder
        if cls is BertEncoder:
            return stored_class
        if not issubclass(cls, stored_class):
            raise InputError(
                f"{directory} holds an encoder of the class {stored_class.__name__}, not "
                f"{cls.__name__}: open it with bert_tf.BertEncoder, which reads every encoder."
            )
        return cls

    @classmethod
    def new_of_zeros(cls, config: BertConfig, seed: int | None, dtype: Any, **kwargs: Any) -> Self:
        return cls(config, seed=seed, dtype=dtype, zeros=True, **kwargs)

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
        """Whether `TransformerBlock`s do; others refuse it. Set it before the step is traced."""
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

    def add_adapters(self, rank: int) -> None:
        """Freezes the embeddings and blocks, and adds adapters of a rank to queries and values.

        LoRA (Hu et al. 2021) as of Keras' `enable_lora`, in the layers that PEFT takes in a BERT.
        The pooler is trained as heads are: many models come without one. Call it before the model
        gets its `Trainer`. Raises InputError for LSTMs.
        """
        if not self.has_attention:
            raise InputError("--lora_rank is for Transformers, not for LSTMs: leave it out")
        for tower in self.towers():
            for layer in (tower.embeddings, *tower.blocks):
                for variable in layer.weights:
                    variable.trainable = False
            for block in tower.blocks:
                for dense in (block.attention.query, block.attention.value):
                    seed = child_seed(tower.seed, f"lora/{block.name}/{dense.name}")
                    dense.enable_lora(rank, a_initializer=keras.initializers.HeUniform(seed))


class EncoderWithHead(PretrainedModel):
    """A model whose first argument is an encoder, or a config for a new one."""

    is_of_task = False  # whether it has the layers that an architecture puts under a task's head

    @classmethod
    def new_of_zeros(cls, config: BertConfig, seed: int | None, dtype: Any, **kwargs: Any) -> Self:
        encoder, dtype = encoder_for(config, seed, dtype, zeros=True, of_task=cls.is_of_task)
        return cls(encoder, seed=seed, dtype=dtype, **kwargs)


def encoder_for(
    encoder: "BertEncoder | BertConfig",
    seed: int | None,
    dtype: Any,
    zeros: bool = False,
    *,
    of_task: bool = False,
) -> tuple["BertEncoder", Any]:
    """The encoder under a head, a new one from a config, and the head's dtype.

    With `zeros` its weights are zeros: random ones of BERT-base, to be replaced, take seconds.
    `of_task` adds the layers between encoder and head that the config's architecture has.
    """
    if not isinstance(encoder, BertConfig):
        return encoder, encoder.dtype_policy if dtype is None else dtype
    architecture = encoder.architecture
    encoder_class = architecture.encoder_class() or BertEncoder
    model = encoder_class(encoder, child_seed(seed, "encoder"), dtype, zeros=zeros, name="encoder")
    dtype = model.dtype_policy if dtype is None else dtype
    return (architecture.on_encoder(model, seed, dtype) if of_task else model), dtype


@keras.saving.register_keras_serializable(package="bert_tf")
class BertEncoder(Encoder):
    """The Transformer encoder of Devlin et al. 2018 (`BertModel` in the original's modeling.py).

    Args:
        config: hyper-parameters.
        seed: random seed for weight initialization and dropout; None for no fixed seed.
        dtype: Keras dtype policy such as "mixed_bfloat16"; None for the global one.
        attention_probabilities: whether to output them; without, they are not kept.
        zeros: whether all weights but the pooler's begin as zeros, to be read from a file.

    Inputs: a dict of int [B, T] tensors, T at most `config.max_position_embeddings`.
        token_ids: ids of the vocabulary.
        segment_ids: 0 for the first sentence, 1 for the second.
        padding_mask: 1 at tokens, 0 at padding.
        position_ids: optional; for rows of several instances
            (`bert_tf.pipelines.instances.schemas`), the position of each token in its instance.
            `padding_mask` then holds the number of the instance, from 1 on, and a token sees its
            own instance alone. Gives `sequence_output` and `hidden_states`.

    Outputs: a dict.
        sequence_output: [B, T, H], the last hidden state.
        pooled_output: [B, H], of [CLS], or of the last token if that alone has seen all others.
        hidden_states: a list of L + 1 tensors [B, T, H], the embeddings' output first.
        attention_probabilities: on request, a list of L tensors [B, N, T, T]: how much each
            token (third axis) attends to each other token (last axis), before dropout.

    Call arguments:
        padding: values of outputs at padding. "states", the default: the states of the formulae.
            "zeros": no matter what; with TensorFlow zeros, which take no time, except under XLA,
            on accelerators in training, and in training on static shapes. "zeros_at_inference":
            "states" in training.
        only: name of the one output to compute and return; None for all. Of "pooled_output" the
            last block computes one token of each row. "attention_probabilities" need not be among
            the outputs.

    Attributes:
        kernels: function that makes the kernels; see `BertLayer`. Set it before tracing.
        observer: called with the outputs of the embeddings and of each block, [n, H], and their
            positions, whenever they are computed; None at first.

    Example::

    ```python
    encoder = BertEncoder(BertConfig.named("tiny", vocab_size=1000))
    outputs = encoder({
        "token_ids": np.array([[2, 17, 45, 3]]),
        "segment_ids": np.array([[0, 0, 0, 0]]),
        "padding_mask": np.array([[1, 1, 1, 1]]),
    })
    outputs["sequence_output"].shape  # (1, 4, 128)
    ```
    """

    arguments = ("config", "attention_probabilities")
    optional_inputs = ("position_ids",)
    is_explained = True
    stored_head = Head("BertModel")

    def __init__(
        self,
        config: BertConfig,
        seed: int | None = None,
        dtype: Any = None,
        attention_probabilities: bool = False,
        zeros: bool = False,
        **kwargs: Any,
    ):
        if other := config.architecture.encoder_class():
            raise InputError(
                f"attention_direction {config.attention_direction} is of another encoder: use "
                f"{other.__module__}.{other.__name__}"
            )
        embeddings = BertEmbeddings(config, zeros=zeros, **part("embeddings", seed, dtype))
        blocks = [
            TransformerBlock(config, zeros=zeros, **part(f"layer_{i}", seed, dtype))
            for i in range(config.num_hidden_layers)
        ]
        pooler = Pooler(config, **part("pooler", seed, dtype))

        # Keras' graph of layers, which names the outputs. `call` computes the same layers for the
        # positions that the kernels find, which are known when a batch is.
        inputs = self.symbolic_inputs()
        mask = inputs["padding_mask"]
        x = embeddings(inputs["token_ids"], inputs["segment_ids"])
        states, probabilities = _run_blocks(blocks, x, attention_probabilities, padding_mask=mask)
        outputs: dict[str, Any] = {
            "sequence_output": states[-1],
            "pooled_output": pooler(states[-1], mask),
            "hidden_states": states,
        }
        if attention_probabilities:
            outputs["attention_probabilities"] = probabilities
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)

        self.architecture = config.architecture
        self.attention_probabilities = attention_probabilities
        self.embeddings = embeddings
        self.blocks = blocks
        self.pooler = pooler
        self.kernels: Callable[[bool], Kernels] = choose_kernels
        self.observer: Callable[[list[Any], Positions], None] | None = None

    def call(
        self,
        inputs: Any,
        training: bool | None = None,
        mask: Any = None,
        padding: str = "states",
        only: str | None = None,
    ) -> Any:
        if padding not in PADDINGS:
            raise InputError(f"padding is {padding!r}: give one of {', '.join(PADDINGS)}")
        inputs = {name: ops.cast(x, "int32") for name, x in inputs.items()}
        kernels = self.kernels(bool(training))

        def compute(rows: dict[str, Any]) -> dict[str, Any]:
            return self._row_outputs(kernels, rows, padding, only)

        return compute(inputs) if self.observer else kernels.compute_rows(compute, inputs)

    def _row_outputs(
        self, kernels: Kernels, inputs: dict[str, Any], padding: str, only: str | None
    ) -> dict[str, Any]:
        """The outputs for rows, at the positions that the kernels find."""
        if is_pooled := only == "pooled_output":
            padding = "zeros"
        returns_probabilities = only == "attention_probabilities" or (
            self.attention_probabilities and not only
        )
        positions = kernels.find_positions(mask_of(inputs), self.architecture, padding)
        names = ("token_ids", "segment_ids", "position_ids")
        ids = {name: inputs[name] for name in names if name in inputs}
        where: dict[str, Any] = {
            "positions": positions,
            "kernels": kernels,
            "training": kernels.training,
        }
        # Called as layers, they read their weights as they are: Keras would cast them elsewhere.
        x = self.embeddings(**ids, **where)  # (n, H), as are all states
        states, probabilities = _run_blocks(
            self.blocks, x, returns_probabilities, is_pooled=is_pooled, **where
        )
        if self.observer:
            self.observer(states[:-1] if is_pooled else states, positions)
        if only == "attention_probabilities":
            return {only: probabilities}
        if is_pooled:
            return {"pooled_output": self.pooler(states[-1], training=kernels.training)}
        hidden_states = [positions.spread(x) for x in states]  # (B, T, H)
        outputs = {"sequence_output": hidden_states[-1], "hidden_states": hidden_states}
        if returns_probabilities:
            outputs["attention_probabilities"] = probabilities
        if "position_ids" not in inputs:
            summary = positions.summary(states[-1])  # (B, H)
            outputs["pooled_output"] = self.pooler(summary, training=kernels.training)
        return {only: outputs[only]} if only else outputs


def _run_blocks(
    blocks: Sequence[TransformerBlock],
    x: Any,
    returns_probabilities: bool,
    is_pooled: bool = False,
    **where: Any,
) -> tuple[list[Any], list[Any]]:
    """The states before and after each block, and its attention probabilities if asked for.

    With `is_pooled` the last block computes one token of each row.
    """
    states = [x]
    probabilities = []
    for block in blocks:
        if is_pooled and block is blocks[-1]:
            where["summary_only"] = True
        x = block(x, return_probabilities=returns_probabilities, **where)
        if returns_probabilities:
            x, probabilities_of_block = x  # (B, N, T, T)
            probabilities.append(probabilities_of_block)
        states.append(x)
    return states, probabilities
