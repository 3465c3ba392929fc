"""The cost of training a model, in floating-point operations."""

from bert_tf.config import BertConfig
from bert_tf.models.chosen_layers import check_layers
from bert_tf.models.feature_encoder import LSTM_UNITS


def pretraining_flops(config: BertConfig, *, instances: int, length: int, predictions: int) -> int:
    """Floating-point operations of a pre-training step, padding included.

    Counts matrix products alone, a multiplication and an addition each; the backward pass counts
    as twice the forward pass (Kaplan et al. 2020, section 2.1, plus the attention's products).

    Args:
        config: hyper-parameters of the model.
        instances: number of instances in a batch.
        length: tokens in an instance.
        predictions: masked positions in an instance, padding included.
    """
    width = config.hidden_size
    heads = predictions * (width**2 + width * config.vocab_size) + width**2 + 2 * width
    return round(3 * 2 * instances * (_encoder_products(config, length) + heads))


def classification_flops(config: BertConfig, *, length: float, classes: int) -> float:
    """Floating-point operations of a training step for one example, padding included.

    Counted as in `pretraining_flops`.

    Args:
        config: hyper-parameters of the encoder.
        length: tokens in an example; the mean length of the batches, for one.
        classes: number of outputs of the head.
    """
    if config.feature_layers is not None:
        return 3 * 2 * _feature_products(config, length, classes)
    width = config.hidden_size
    return 3 * 2 * (_encoder_products(config, length) + width**2 + width * classes)


def _feature_products(config: BertConfig, length: float, classes: int) -> float:
    """Multiplications of what stands on a frozen encoder, whose vectors are kept."""
    width, products = check_layers(config.feature_layers or (), config), 0.0
    for _ in range(config.feature_lstm_layers):
        products += length * 2 * 4 * LSTM_UNITS * (width + LSTM_UNITS)
        width = 2 * LSTM_UNITS
    return products + width * classes


def _encoder_products(config: BertConfig, length: float) -> float:
    """Multiplications in the matrix products of a forward pass over one sequence."""
    width, inner = config.hidden_size, config.intermediate_size
    projections = 4 * width**2 + 2 * width * inner  # query, key, value, output; feed-forward
    attention = 2 * length * width  # scores, and the mean of the values
    return config.num_hidden_layers * length * (projections + attention)
