"""Checks whether a pre-trained model has learned more than word frequencies.

Pre-training learns these first, and stays on that plateau for a while. A model from there, whose
guesses are all "the" or ",", is hardly worth fine-tuning.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.extensions import Architecture, added

METRICS = "metrics.json"  # held-out scores of a model, beside it
_PLATEAU = 0.97  # share of the frequencies' loss from which on a loss is on the plateau


def word_frequency_loss(batches: Iterable[Any]) -> float:
    """The loss per word, in nats, of a model that knows word frequencies alone.

    The entropy of the labels, with Chao and Shen's estimate (2003) for what a sample misses.
    """
    counts: Counter[int] = Counter()
    for _, labels, weights in batches:
        name = next(iter(labels))  # of words, whatever predicts them
        counts.update(labels[name].numpy()[weights[name].numpy() > 0].tolist())
    numbers = np.array(list(counts.values()))
    total = counts.total()
    seen_once = int((numbers == 1).sum())
    if seen_once == total:  # no words, or too few to say anything
        return 0.0
    shares = (1 - seen_once / total) * numbers / total
    return float(-(shares * np.log(shares) / (1 - (1 - shares) ** total)).sum())


def losses_per_word(metrics: Mapping[str, float]) -> dict[str, float]:
    """The losses among held-out scores, by what predicts the words, such as mlm."""
    known = (Architecture, *added("architectures"))
    heads = dict.fromkeys(name for architecture in known for name in architecture.predicts)
    return {head: loss for head in heads if (loss := metrics.get(f"{head}_loss"))}


def is_on_plateau(metrics: Mapping[str, float]) -> bool:
    """Whether a model knows little but how frequent words are, by its held-out scores."""
    frequencies = metrics.get("word_frequency_loss") or math.inf
    return any(loss >= _PLATEAU * frequencies for loss in losses_per_word(metrics).values())


def plateau_notice(model_directory: str | Path) -> str | None:
    """A line for the user if a model of `bert-tf pretrain` is still on the plateau, else None."""
    try:
        metrics = json.loads((Path(model_directory) / METRICS).read_text(encoding="utf-8"))
        if not is_on_plateau(metrics):
            return None
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    loss = max(losses_per_word(metrics).values())
    frequencies = metrics["word_frequency_loss"]
    is_worse = loss > frequencies / _PLATEAU
    claim = "predicts words worse than" if is_worse else "has learned little beyond"
    return (
        f"{model_directory} {claim} word frequencies (loss {loss:.2f} per word; frequencies alone "
        f"give {frequencies:.2f}): pre-train it for more steps, or with "
        f"{'another' if is_worse else 'a higher'} --learning_rate"
    )
