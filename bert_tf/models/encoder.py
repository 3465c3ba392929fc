"""The BERT encoder as a Keras model."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from bert_tf.checkpoints.weight_names import Head
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.models.pretrained_model import Encoder
from bert_tf.networks.bert_layer import child_seed, choose_kernels, part
from bert_tf.networks.encoder import BertEmbeddings, TransformerBlock, mask_of
from bert_tf.networks.heads import Pooler
from bert_tf.networks.kernels import Kernels, Positions

PADDINGS = ("states", "zeros", "zeros_at_inference")


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
        padding: values of outputs at padding. "states", the default: those of the formulae.
            "zeros": no matter what; with TensorFlow zeros, which take no time, except under XLA,
            on accelerators in training, and in training on static shapes. "zeros_at_inference":
            "states" in training.
        only: name of the one output to compute and return; None for all. Of "pooled_output" the
            last block computes one token of each row. "attention_probabilities" need not be among
            the outputs.

    Attributes:
        kernels: function that makes the kernels; see `BertLayer`. Set it before tracing.
        observer: called with the embeddings' output and that of each block, [n, H], and their
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

        inputs = self.symbolic_inputs()
        mask = inputs["padding_mask"]
        states = [embeddings(inputs["token_ids"], inputs["segment_ids"])]
        probabilities: list[Any] = []
        for block in blocks:
            result = block(states[-1], mask, return_probabilities=attention_probabilities)
            x, *weights = result if attention_probabilities else (result,)
            states.append(x)
            probabilities += weights
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
            return self._of_rows(kernels, rows, padding, only)

        return compute(inputs) if self.observer else kernels.of_rows(compute, inputs)

    def _of_rows(
        self, kernels: Kernels, inputs: dict[str, Any], padding: str, only: str | None
    ) -> dict[str, Any]:
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
        states, probabilities = [self.embeddings(**ids, **where)], []  # (n, H) each
        for block in self.blocks:
            is_last = block is self.blocks[-1]
            x = block(
                states[-1],
                **where,
                return_probabilities=returns_probabilities,
                summary_only=is_pooled and is_last,
            )
            if returns_probabilities:
                x, of_block = x  # (B, N, T, T)
                probabilities.append(of_block)
            states.append(x)
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
