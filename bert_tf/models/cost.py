"""What a model costs, in arithmetic."""

from bert_tf.config import BertConfig


def pretraining_flops(config: BertConfig, *, instances: int, length: int, predictions: int) -> int:
    """Floating-point operations of a pre-training step, padding included.

    Of matrix products alone, a multiplication and an addition each, the backward pass counted as
    twice the forward one (Kaplan et al. 2020, section 2.1; with the attention's products added).

    Args:
        config: of the model.
        instances: in a batch.
        length: tokens of an instance.
        predictions: masked positions of an instance, padding included.
    """
    width = config.hidden_size
    heads = predictions * (width**2 + width * config.vocab_size) + width**2 + 2 * width
    return round(3 * 2 * instances * (_encoder_products(config, length) + heads))


def classification_flops(config: BertConfig, *, length: float, classes: int) -> float:
    """Floating-point operations of a training step for one example, padding included.

    Counted as in `pretraining_flops`.

    Args:
        config: of the encoder.
        length: tokens of an example, the mean of the batches' lengths for one.
        classes: outputs of the head.
    """
    width = config.hidden_size
    return 3 * 2 * (_encoder_products(config, length) + width**2 + width * classes)


def _encoder_products(config: BertConfig, length: float) -> float:
    """Multiplications in the matrix products of a forward pass over one sequence."""
    width, inner = config.hidden_size, config.intermediate_size
    projections = 4 * width**2 + 2 * width * inner  # query, key, value, output; feed-forward
    attention = 2 * length * width  # scores, and the mean of the values
    return config.num_hidden_layers * length * (projections + attention)
