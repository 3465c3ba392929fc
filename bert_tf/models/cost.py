"""The cost of training a model, in floating-point operations."""

from bert_tf.config import BertConfig
from bert_tf.models.feature_encoder import MIX, check_layers, lstm_units


def pretraining_flops(config: BertConfig, *, instances: int, length: int, predictions: int) -> int:
    """Floating-point operations of a step on `instances` with `predictions` places to predict each.

    Counts matrix products alone, of padding, too; the backward pass counts as twice the forward
    pass (Kaplan et al. 2020, section 2.1, plus the attention's products).
    """
    width = config.hidden_size
    heads = config.width // width * predictions * (width**2 + width * config.vocab_size)
    if config.attention_direction == "both":  # next sentences
        heads += width**2 + 2 * width
    return round(3 * 2 * instances * (_encoder_products(config, length) + heads))


def classification_flops(config: BertConfig, *, length: float, classes: int) -> float:
    """Floating-point operations of a training step for one example, padding included.

    Counted as in `pretraining_flops`, with all of the last block, which `BertClassifier` computes
    for one token. The length of examples may be a mean.
    """
    width, lstms = _lstms_on_top(config)
    products = length * lstms + width * classes
    if config.feature_layers is None:  # else the encoder's vectors are kept
        products += _encoder_products(config, length)
        products += 0 if config.has_feature_encoder else width * config.hidden_size  # the pooler
    return 3 * 2 * products


def lstm_flops(config: BertConfig, *, length: float) -> float:
    """Operations of LSTM layers for one example, in small products, which take longer."""
    products: float = _lstms_on_top(config)[1]
    if config.attention_direction == "recurrent" and config.feature_layers is None:
        products += _encoder_products(config, 1)
    return 3 * 2 * length * products


def _lstms_on_top(config: BertConfig) -> tuple[int, int]:
    """The width of vectors under a head, and the multiplications of LSTMs there for a token."""
    width, units, products = config.width, lstm_units(config), 0
    if config.feature_layers not in (None, MIX):
        width = check_layers(config.feature_layers, config)
    for _ in range(config.feature_lstm_layers):
        products += 2 * 4 * units * (width + units)
        width = 2 * units
    return width, products


def _encoder_products(config: BertConfig, length: float) -> float:
    """Multiplications in the matrix products of a forward pass over one sequence."""
    width, inner = config.hidden_size, config.intermediate_size
    projections = 4 * width**2 + 2 * width * inner  # query, key, value, output; feed-forward
    attention = 2 * length * width  # scores, and the mean of the values
    layers = len(config.directions) * config.num_hidden_layers
    if config.attention_direction == "recurrent":
        return layers * length * 2 * 4 * width * 2 * width
    return layers * length * (projections + attention)
