"""Guesses for hidden words, which show what a pre-trained model has learned."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.extensions import Architecture, added
from bert_tf.tasks.kinds.masked_language_model import guess_masked_words
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.logs import EventFolder
from bert_tf.training.monitoring import TensorBoardLog

_WINDOW = 15  # pieces shown before and after a hidden word
_LOG = "masked_words"


def _read_at() -> dict[str, int]:
    """Output -> the distance of the place where it predicts a [MASK]."""
    known = (Architecture, *added("architectures"))
    return {
        f"{name}_logits": distance
        for architecture in known
        for name, distance in architecture.predicts.items()
    }


class Guess(NamedTuple):
    """A guess for a [MASK]: an entry of the vocabulary, and its probability from 0 to 1."""

    piece: str
    probability: float


def hide_words(batches: Iterable[Any], tokenizer: BertTokenizer, count: int = 5) -> dict[str, str]:
    """Text with one [MASK] -> the word behind it, from `pretraining_batches`, up to `count`."""
    hidden: dict[str, str] = {}
    for inputs, labels, weights in batches:
        name = next(name for name in _read_at() if name in labels)
        batch = inputs["token_ids"], inputs["mask_positions"], labels[name], weights[name]
        for ids, positions, words, weight in zip(*(x.numpy() for x in batch), strict=True):
            predicted = positions[weight > 0]
            if name == "mlm_logits":
                ids[predicted] = words[weight > 0]  # the text as it was
            whole = [
                position
                for position in predicted
                if not tokenizer.is_continuation[ids[position : position + 2]].any()
                and tokenizer.vocabulary[ids[position]].isalpha()
            ]
            if whole:
                position = whole[len(whole) // 2]
                hidden[_around(ids, position, tokenizer)] = tokenizer.vocabulary[ids[position]]
            if len(hidden) == count:
                return hidden
    return hidden


def _around(ids: np.ndarray, position: int, tokenizer: BertTokenizer) -> str:
    """Some text of the same sentence or segment around a hidden word."""
    ends = np.isin(ids, [tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id])
    before = np.flatnonzero(ends[:position])
    after = np.flatnonzero(ends[position:])
    first = max(position - _WINDOW, before[-1] + 1 if len(before) else 0)
    last = min(position + _WINDOW, position + after[0] if len(after) else len(ids))
    shown = tf.ragged.constant([ids[first:position], ids[position + 1 : last]], dtype=tf.int32)
    left, right = (text.decode() for text in tokenizer.detokenize(shown).numpy())
    return f"{left.removeprefix('##')} [MASK] {right}".strip()


class MaskedWords:
    """Predicts the words at each [MASK] of some texts, with the model's current weights.

    Of several outputs, it is the mean of their probabilities. `texts` may map each text to the word
    behind its [MASK]. Raises InputError for a text without one.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: BertTokenizer,
        texts: Iterable[str] | Mapping[str, str],
        guesses: int = 5,
    ) -> None:
        self.texts = list(texts)
        self.hidden = dict(texts) if isinstance(texts, Mapping) else {}
        for text in self.texts:
            if "[MASK]" not in text:
                raise InputError(f"no [MASK] in {text!r}: write it in place of a word")
        reads_unknown = tokenizer.with_switches(special_tokens_in_text=True)  # [UNK], too
        length = model.encoder.config.max_position_embeddings

        def predict(inputs: dict[str, tf.Tensor], training: bool) -> tf.Tensor:
            probabilities = []
            for name, distance in _read_at().items():
                if name not in model.output:
                    continue
                positions = inputs["mask_positions"] + distance
                logits = model({**inputs, "mask_positions": positions}, training=training)[name]
                logits = logits[..., : tokenizer.vocabulary_size]  # tables may be padded
                probabilities.append(tf.nn.softmax(tf.cast(logits, tf.float32)))
            return tf.math.log(tf.add_n(probabilities) / len(probabilities))

        task = TASKS["masked_words"].with_settings({"max_length": length})
        answerer = Answerer(task, predict, reads_unknown)
        self._guess = tf.function(
            lambda: guess_masked_words(tf.constant(self.texts), guesses, answerer), autograph=False
        )

    def __call__(self) -> list[list[list[Guess]]]:
        """The most probable words, by text and gap, the best first."""
        outputs = {name: values.numpy().tolist() for name, values in self._guess().items()}
        names = ("masks_count", "masks_words", "masks_probabilities")
        answers = []
        for count, words, shares in zip(*map(outputs.get, names), strict=True):
            gaps = zip(words[:count], shares[:count], strict=True)
            answers.append([[Guess(w.decode(), p) for w, p in zip(*g, strict=True)] for g in gaps])
        return answers


@dataclass(eq=False)
class MaskedWordLog(TensorBoardLog):
    """Writes the guesses after every evaluation, as text for TensorBoard."""

    words: MaskedWords

    def __post_init__(self) -> None:
        self._events = EventFolder(self.directory / _LOG)
        self.state.logged.setdefault(_LOG, 0)

    def after_evaluation(self) -> None:
        self.state.logged[_LOG] = self.state.step
        answers = self.words()
        with self._events.at(self.state.step):
            for number, (text, gaps) in enumerate(zip(self.words.texts, answers, strict=True)):
                hidden = self.words.hidden.get(text)
                tf.summary.text(f"masked_words/{number}", _as_markdown(text, gaps, hidden))


def _as_markdown(text: str, gaps: list[list[Guess]], hidden: str | None) -> str:
    shown = text.replace("[MASK]", "**[MASK]**")
    if hidden is not None:
        shown += f" (hidden: {_as_code(hidden)})"
    lines = [", ".join(f"{_as_code(g.piece)} {g.probability:.1%}" for g in gap) for gap in gaps]
    return "\n".join([shown, "", *lines])


def _as_code(piece: str) -> str:
    """In Markdown, where a bare * or _ would be read as a mark."""
    return f"`` {piece} ``" if "`" in piece else f"`{piece}`"
