"""The cost of LSTM layers, and of heads on features of an encoder: see `bert_tf.models.cost`."""

from bert_tf.config import BertConfig
from bert_tf.models.chosen_layers import check_layers
from bert_tf.models.cost import encoder_products
from bert_tf.paper.feature_encoder import MIX, lstm_units


def lstm_flops(config: BertConfig, *, length: float) -> float:
    """Floating-point operations of the LSTM layers in one example's training step.

    LSTMs multiply token by token: these operations take longer than an encoder's large products.
    """
    products: float = _lstms_on_top(config)[1]
    if config.attention_direction == "recurrent" and config.feature_layers is None:
        products += encoder_products(config, 1)
    return 3 * 2 * length * products


def task_products(config: BertConfig, length: float, classes: int) -> float:
    """Multiplications of a head on features; a frozen encoder computes once and is not counted."""
    width, lstms = _lstms_on_top(config)
    encoder = encoder_products(config, length) if config.feature_layers is None else 0
    return length * lstms + width * classes + encoder


def _lstms_on_top(config: BertConfig) -> tuple[int, int]:
    """The width of vectors under a head, and the multiplications of LSTMs there for a token."""
    width = config.width
    units = lstm_units(config)
    products = 0
    if config.feature_layers not in (None, MIX):
        width = check_layers(config.feature_layers, config)
    for _ in range(config.feature_lstm_layers):
        products += 2 * 4 * units * (width + units)
        width = 2 * units
    return width, products
