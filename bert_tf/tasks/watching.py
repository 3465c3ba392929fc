"""What TensorBoard and the terminal show of a run, beside its losses and scores."""

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.models.task_models import BertClassifier
from bert_tf.tasks.masked_words import MaskedWordLog, MaskedWords
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS
from bert_tf.training.hyper_parameters import HyperParameters
from bert_tf.training.monitoring import Histograms, Profile
from bert_tf.training.peak import strategy_peak
from bert_tf.training.projector import ProjectorLog
from bert_tf.training.run import Run


def watch_run(
    run: Run,
    model: BertPreTrainer | BertClassifier,
    examples: Callable[[], Iterable[Any]],
    *,
    values: Mapping[str, Any],
    score: str,
    total_steps: int,
    histograms_every: int | None,
    profile: tuple[int, int] | None,
) -> None:
    """Has a run write its hyper-parameters, and histograms and a profile if asked for.

    Args:
        run: prepared.
        model: the model it trains, with an `encoder`.
        examples: makes a dataset of training batches (inputs, ...); histograms of activations use
            the first one.
        values: hyper-parameters by name.
        score: name of the best score.
        total_steps: length of the run.
        histograms_every: steps between two histograms; None for none.
        profile: first and last step to profile; None for none.
    """
    run.watch(
        HyperParameters(
            run.logs,
            run.state,
            run=str(run.directory),
            values=values,
            score=score,
            total_steps=total_steps,
        )
    )
    if histograms_every is not None:

        @functools.cache  # the same examples each time
        def inputs() -> dict[str, tf.Tensor]:
            given, *_ = next(iter(examples()))
            return {name: given[name] for name in ("token_ids", "segment_ids", "padding_mask")}

        def activations() -> dict[str, tf.Tensor]:
            states = model.encoder(inputs(), training=False)["hidden_states"]
            return {f"hidden_state_{layer}": values for layer, values in enumerate(states)}

        run.watch(
            Histograms(
                run.logs, run.state, every=histograms_every, weights=model, activations=activations
            )
        )
    if profile is not None:
        run.watch(Profile(run.logs, run.state, *profile))


def watch_pretraining(
    run: Run,
    model: BertPreTrainer,
    tokenizer: BertTokenizer,
    texts: Sequence[str] | Mapping[str, str],
) -> None:
    """Has a run write guesses for masked words and the word embeddings after each evaluation.

    Args:
        run: prepared.
        model: the model it trains.
        tokenizer: the shards' tokenizer.
        texts: texts with [MASK] in them; may map each to the word behind it.

    Raises:
        InputError: a text has no [MASK].
    """
    if texts:
        words = MaskedWords(model, tokenizer, texts)
        run.watch(MaskedWordLog(run.logs, run.state, words))
    run.watch(
        ProjectorLog(
            run.logs,
            run.state,
            name="word_embeddings",
            table=model.encoder.embeddings.word_embeddings.embeddings,
            columns=vocabulary_columns(tokenizer.vocabulary),
        ),
    )


def vocabulary_columns(vocabulary: list[str]) -> dict[str, list]:
    """The columns that the projector shows beside the word embeddings: `piece`, `id` and `kind`.

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
    """Factors that turn examples per second into tokens per second and a share of the peak.

    The peak is measured, where it can be.

    Args:
        strategy: devices.
        dtype: dtype of the matrix products.
        tokens: mean tokens per example, without padding.
        flops: floating-point operations per example.
    """
    factors = {"tokens_per_second": tokens}
    peak = strategy_peak(strategy, dtype)
    if peak is not None:
        factors["share_of_peak"] = flops / peak
    return factors
