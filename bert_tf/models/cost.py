"""The cost of training a model, in floating-point operations."""

from bert_tf.config import BertConfig


def pretraining_flops(config: BertConfig, *, instances: int, length: int, predictions: int) -> int:
    """Floating-point operations of a step on `instances` with `predictions` places to predict each.

    Counts matrix products alone, of padding, too; the backward pass counts as twice the forward
    pass (Kaplan et al. 2020, section 2.1, plus the attention's products).
    """
    width = config.hidden_size
    architecture = config.architecture
    heads = architecture.width * predictions * (width**2 + width * config.vocab_size)
    if not architecture.objective:  # next sentences
        heads += width**2 + 2 * width
    return round(3 * 2 * instances * (encoder_products(config, length) + heads))


def classification_flops(config: BertConfig, *, length: float, classes: int) -> float:
    """Floating-point operations of a training step for one example, padding included.

    Counted as in `pretraining_flops`, with all of the last block, which `BertClassifier` computes
    for one token. The length of examples may be a mean.
    """
    products = config.architecture.task_products(length, classes)
    if products is None:
        head = config.width * (config.hidden_size + classes)  # with the pooler
        products = encoder_products(config, length) + head
    return 3 * 2 * products


def encoder_products(config: BertConfig, length: float) -> float:
    """Multiplications in the matrix products of a forward pass over one sequence."""
    products = config.architecture.encoder_products(length)
    return transformer_products(config, length) if products is None else products


def transformer_products(config: BertConfig, length: float) -> float:
    """`encoder_products` of a BERT."""
    width = config.hidden_size
    inner = config.intermediate_size
    projections = 4 * width**2 + 2 * width * inner  # query, key, value, output; feed-forward
    attention = 2 * length * width  # scores, and the mean of the values
    return config.num_hidden_layers * length * (projections + attention)
