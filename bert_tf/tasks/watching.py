"""What TensorBoard and the terminal show of a run, beside its losses and scores."""

import functools
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from bert_tf.models.classifier import BertClassifier
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tasks.masked_words import SENTENCES, MaskedWordLog, MaskedWords
from bert_tf.tasks.options import (
    FinetuningOptions,
    PretrainingOptions,
    TrainingOptions,
    steps_to_profile,
)
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS
from bert_tf.training.hyper_parameters import HyperParameters
from bert_tf.training.monitoring import Histograms, Profile
from bert_tf.training.peak import strategy_peak
from bert_tf.training.projector import ProjectorLog
from bert_tf.training.state import TrainingState

# The options that both commands have and that runs may be told apart by.
_COMMON = (
    "batch_size", "seed", "precision", "optimizer", "learning_rate", "weight_decay", "clip_norm",
    "gradient_accumulation_steps", "freeze_layers", "model",
)  # fmt: skip
_PRETRAINING = (
    "shards", "long_shards", "size", "dropout", "initializer_range", "steps",
    "masked_lm_prob", "whole_word_masking", "max_ngram",
)  # fmt: skip
_FINETUNING = ("train", "from_scratch", "epochs", "warmup_share", "max_length")


def pretraining_watchers(
    options: PretrainingOptions,
    model: BertPreTrainer,
    tokenizer: BertTokenizer,
    state: TrainingState,
    examples: Callable[[], Iterable[Any]],
    *,
    warmup_steps: int,
) -> list[keras.callbacks.Callback]:
    """Callbacks that write guesses, embeddings, hyper-parameters and what `options` ask for.

    Args:
        options: of the run.
        model: trained by it.
        tokenizer: of the shards.
        state: of the run; it need not be restored yet.
        examples: makes a dataset of batches (inputs, …) of the training data, of which the first
            is looked at.
        warmup_steps: as they are, not as they were asked for.

    Raises:
        InputError: a text to watch has no [MASK].
    """
    logs = Path(options.output) / "logs"
    words = MaskedWords(model, tokenizer, options.watch_text or SENTENCES)
    return [
        MaskedWordLog(logs, state, words),
        ProjectorLog(
            logs,
            state,
            name="word_embeddings",
            table=model.encoder.embeddings.word_embeddings.embeddings,
            columns=vocabulary_columns(tokenizer.vocabulary),
        ),
        HyperParameters(
            logs,
            state,
            run=options.output,
            values={
                **{name: getattr(options, name) for name in (*_COMMON, *_PRETRAINING)},
                "warmup_steps": warmup_steps,
                "long_share": options.long_share if options.long_shards else None,
            },
            score="best_loss",
            total_steps=options.steps,
        ),
        *_on_request(options, model, state, examples),
    ]


def finetuning_watchers(
    options: FinetuningOptions,
    model: BertClassifier,
    state: TrainingState,
    examples: Callable[[], Iterable[Any]],
    *,
    total_steps: int,
) -> list[keras.callbacks.Callback]:
    """Callbacks that write hyper-parameters and what `options` ask for.

    Args:
        options: of the run.
        model: trained by it.
        state: of the run; it need not be restored yet.
        examples: as of `pretraining_watchers`.
        total_steps: of the run.
    """
    logs = Path(options.output) / "logs"
    return [
        HyperParameters(
            logs,
            state,
            run=options.output,
            values={name: getattr(options, name) for name in (*_COMMON, *_FINETUNING)},
            score="best_accuracy",
            total_steps=total_steps,
        ),
        *_on_request(options, model, state, examples),
    ]


def _on_request(
    options: TrainingOptions,
    model: BertPreTrainer | BertClassifier,
    state: TrainingState,
    examples: Callable[[], Iterable[Any]],
) -> list[keras.callbacks.Callback]:
    logs = Path(options.output) / "logs"
    asked_for: list[keras.callbacks.Callback] = []
    if options.histograms_every is not None:

        @functools.cache  # the same examples each time
        def inputs() -> dict[str, tf.Tensor]:
            given, *_ = next(iter(examples()))
            return {name: given[name] for name in ("token_ids", "segment_ids", "padding_mask")}

        def activations() -> dict[str, tf.Tensor]:
            states = model.encoder(inputs(), training=False)["hidden_states"]
            return {f"hidden_state_{layer}": values for layer, values in enumerate(states)}

        asked_for.append(
            Histograms(
                logs, state, every=options.histograms_every, weights=model, activations=activations
            )
        )
    if options.profile is not None:
        asked_for.append(Profile(logs, state, *steps_to_profile(options.profile)))
    return asked_for


def vocabulary_columns(vocabulary: list[str]) -> dict[str, list]:
    """What the projector shows of the word embeddings: `piece`, `id` and `kind`.

    A kind is "special", "unused" (the spare [unusedN] of the published vocabularies),
    "continuation" (the ## pieces) or "word".
    """
    return {
        "piece": vocabulary,
        "id": list(range(len(vocabulary))),
        "kind": [_kind(piece) for piece in vocabulary],
    }


def _kind(piece: str) -> str:
    if piece in SPECIAL_TOKENS:
        return "special"
    if re.fullmatch(r"\[unused\d+\]", piece):
        return "unused"
    return "continuation" if piece.startswith("##") and piece != "##" else "word"


def rates(
    strategy: tf.distribute.Strategy, dtype: str, *, tokens: float, flops: float
) -> dict[str, float]:
    """What an example a second is in tokens a second, and of the machine's peak.

    The peak is measured, where it can be.

    Args:
        strategy: of the run.
        dtype: of the arithmetic.
        tokens: of an example, padding apart.
        flops: floating-point operations for an example.
    """
    of_example = {"tokens_per_second": tokens}
    peak = strategy_peak(strategy, dtype)
    if peak is not None:
        of_example["share_of_peak"] = flops / peak
    return of_example
