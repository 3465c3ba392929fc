"""The encoder of a bidirectional language model of LSTMs, as in ELMo."""

from typing import Any

import keras
from keras import ops

from bert_tf.config import BertConfig
from bert_tf.layers.bert_layer import part
from bert_tf.layers.embeddings import WordEmbeddings
from bert_tf.layers.lstm import LstmBlock
from bert_tf.models.pretrained_model import Encoder


@keras.saving.register_keras_serializable(package="bert_tf")
class LstmEncoder(Encoder):
    """LSTMs from left to right and from right to left, their outputs side by side.

    The third system of the paper's figure 3 (Peters et al. 2018, section 3), on word pieces in
    place of characters. Neither direction reads the states of the other. Takes the place of a
    `BertEncoder` with outputs twice as wide.

    Args:
        config: hyper-parameters; `hidden_size` is that of the embeddings and of each LSTM.
        seed, dtype, kwargs: see `PretrainedModel`.

    Inputs: those of `BertEncoder`; `segment_ids` change nothing.

    Outputs: a dict.
        sequence_output: [B, T, 2 H], the last hidden state: what the forward LSTM has read up to a
            token, itself included, and what the backward one has read from the end to there.
        pooled_output: [B, 2 H], the forward LSTM's at the last token, the backward one's at [CLS].
        hidden_states: a list of L + 1 tensors [B, T, 2 H], the embeddings, twice, first.
    """

    arguments = ("config",)

    def __init__(
        self, config: BertConfig, seed: int | None = None, dtype: Any = None, **kwargs: Any
    ):
        embeddings = WordEmbeddings(config, **part("embeddings", seed, dtype))
        blocks = [
            LstmBlock(config, residual=i > 0, **part(f"layer_{i}", seed, dtype))
            for i in range(config.num_hidden_layers)
        ]

        inputs = self.symbolic_inputs()
        x = embeddings(inputs["token_ids"])  # (B, T, H)
        hidden_states = [ops.concatenate([x, x], axis=-1)]  # (B, T, 2 H), as are the next
        for block in blocks:
            hidden_states.append(block(hidden_states[-1], inputs["padding_mask"]))
        before, after = ops.split(hidden_states[-1], 2, axis=-1)  # (B, T, H)
        outputs = {
            "sequence_output": hidden_states[-1],
            # At padding an LSTM repeats what it gave last.
            "pooled_output": ops.concatenate([before[:, -1], after[:, 0]], axis=-1),
            "hidden_states": hidden_states,
        }
        super().__init__(config, inputs, outputs, seed, dtype, **kwargs)
        self.embeddings = embeddings
        self.blocks = blocks
