"""Pre-training instances of shards as readable text."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from bert_tf.errors import InputError
from pipelines.shards.folder import ShardFolder, shard_errors
from pipelines.shards.pretraining_batches import pretraining_batches

if TYPE_CHECKING:
    from bert_tf.tokenization import BertTokenizer


class DisplayedToken(NamedTuple):
    """The piece that the model sees, and the one to predict there, if any."""

    shown: str
    hidden: str | None


class DisplayedInstance(NamedTuple):
    """An instance, decoded.

    Attributes:
        tokens: tokens without padding.
        label: "IsNext" or "NotNext", as in the paper (section 3.1, task 2); None if instances are
            not pairs.
    """

    tokens: list[DisplayedToken]
    label: str | None


def displayed_instances(
    shards: ShardFolder, tokenizer: "BertTokenizer", count: int, seed: int
) -> list[DisplayedInstance]:
    """Decodes the `count` instances that training with `seed` sees first, with their masks.

    Args:
        shards: an opened split.
        tokenizer: tokenizer that the shards were made with.
        count: maximum number of instances, at least 1.
        seed: random seed of the training.

    Raises:
        InputError: a record is damaged, or the vocabulary does not match.
    """
    batches = pretraining_batches(shards, count, seed=seed, repeat=False, tokenizer=tokenizer)
    assert batches is not None  # the split exists
    with shard_errors(shards.directory):
        inputs, labels, weights = next(batches.as_numpy_iterator())
    highest = max(inputs["token_ids"].max(), labels["mlm_logits"].max())
    if highest >= tokenizer.vocabulary_size:
        raise InputError(
            f"{shards.directory}: token id {highest} exceeds the tokenizer's "
            f"{tokenizer.vocabulary_size} pieces: give --tokenizer the one they were made with"
        )
    instances = []
    for row, token_ids in enumerate(inputs["token_ids"]):
        is_prediction = weights["mlm_logits"][row] > 0
        positions = inputs["mask_positions"][row][is_prediction]
        pieces = map(tokenizer.id_to_token, labels["mlm_logits"][row][is_prediction])
        hidden = dict(zip(positions, pieces, strict=True))
        # Tokens have the number of their instance, from 1 on: there is one, or a row of several.
        for number, is_random_next in enumerate(np.atleast_1d(labels["nsp_logits"][row]), start=1):
            tokens = [
                DisplayedToken(tokenizer.id_to_token(token_ids[place]), hidden.get(place))
                for place in np.flatnonzero(inputs["padding_mask"][row] == number)
            ]
            label = ("IsNext", "NotNext")[is_random_next] if shards.has_next_sentences else None
            if tokens:
                instances.append(DisplayedInstance(tokens, label))
    return instances[:count]
