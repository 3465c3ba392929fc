"""What TensorBoard and the terminal show of a run, beside its losses and scores."""

import re
from collections.abc import Mapping, Sequence

import tensorflow as tf

from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tasks.masked_words import MaskedWordLog, MaskedWords
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.tokenization.vocabulary import SPECIAL_TOKENS
from bert_tf.training.peak import strategy_peak
from bert_tf.training.projector import ProjectorLog
from bert_tf.training.run import Run


def watch_pretraining(
    run: Run,
    model: BertPreTrainer,
    tokenizer: BertTokenizer,
    texts: Sequence[str] | Mapping[str, str],
) -> None:
    """Has a prepared run write guesses and the word embeddings after each evaluation.

    The guesses are for the words at [MASK] in `texts`, which may map each to the word behind it.

    Raises:
        InputError: a text has no [MASK].
    """
    if texts:
        run.watch(MaskedWordLog(run.state, run.logs, MaskedWords(model, tokenizer, texts)))
    pieces = tokenizer.vocabulary
    columns = {"piece": pieces, "id": range(len(pieces)), "kind": [_kind(p) for p in pieces]}
    table = model.encoder.embeddings.word_embeddings.embeddings
    run.watch(ProjectorLog(run.state, run.logs, "word_embeddings", table, columns))


def _kind(piece: str) -> str:
    if piece in SPECIAL_TOKENS:
        return "special"
    if re.fullmatch(r"\[unused\d+\]", piece):  # the spare entries of the published vocabularies
        return "unused"
    return "continuation" if piece.startswith("##") and piece != "##" else "word"


def rates(
    strategy: tf.distribute.Strategy, dtype: str, *, tokens: float, flops: float
) -> dict[str, float]:
    """Factors that turn examples per second into tokens per second and a share of the peak.

    The peak of matrix products in `dtype` is measured, where it can be.

    Args:
        strategy: devices.
        dtype: dtype of the matrix products.
        tokens: mean tokens per example, without padding.
        flops: floating-point operations per example.
    """
    peak = strategy_peak(strategy, dtype)
    share = {} if peak is None else {"share_of_peak": flops / peak}
    return {"tokens_per_second": tokens, **share}
