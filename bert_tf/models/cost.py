"""What a model costs, in arithmetic."""

from bert_tf.models.config import BertConfig


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
    width, inner = config.hidden_size, config.intermediate_size
    projections = 4 * width**2 + 2 * width * inner  # query, key, value, output; feed-forward
    attention = 2 * length * width  # scores, and the mean of the values
    encoder = config.num_hidden_layers * length * (projections + attention)
    heads = predictions * (width**2 + width * config.vocab_size) + width**2 + 2 * width
    return 3 * 2 * instances * (encoder + heads)
