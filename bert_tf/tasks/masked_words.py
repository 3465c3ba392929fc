"""Words for the gaps in a text: what a pre-trained model has learned, to look at."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from bert_tf.errors import InputError
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.tokenization.packing import Packer
from bert_tf.tokenization.tokenizer import BertTokenizer
from bert_tf.training.event_folder import EventFolder
from bert_tf.training.state import TrainingState
from bert_tf.training.workers import is_chief

# Common English; the first is the paper's (section 3.1).
SENTENCES = (
    "the man went to the [MASK] .",
    "she opened the [MASK] and looked out .",
    "he did not [MASK] what to say .",
    "it was a long [MASK] ago .",
    "they were sitting at the [MASK] .",
)

_LOG = "masked_words"


class Guess(NamedTuple):
    """A word for a gap.

    Attributes:
        piece: entry of the vocabulary.
        probability: the model's, from 0 to 1.
    """

    piece: str
    probability: float


class MaskedWords:
    """Predicts the words at each [MASK] of some texts.

    Args:
        model: a pre-trainer; it is asked as it stands at each call.
        tokenizer: its tokenizer.
        texts: each with at least one [MASK].
        guesses: how many words for a gap.

    Raises:
        InputError: a text has no [MASK].
    """

    def __init__(
        self,
        model: BertPreTrainer,
        tokenizer: BertTokenizer,
        texts: Sequence[str] = SENTENCES,
        guesses: int = 5,
    ) -> None:
        self.texts = list(texts)
        self._model = model
        self._pieces = tokenizer.vocabulary
        self._guesses = guesses
        settings: dict[str, Any] = {**tokenizer.settings, "special_tokens_in_text": True}
        reads_masks = BertTokenizer(tokenizer.vocabulary, **settings)
        length = model.encoder.config.max_position_embeddings
        inputs = Packer(reads_masks, max_length=length)(reads_masks.tokenize(self.texts))
        ids = inputs["token_ids"].numpy()  # (n, T)
        gaps = [np.flatnonzero(row == tokenizer.mask_token_id) for row in ids]
        for text, places in zip(self.texts, gaps, strict=True):
            if not len(places):
                raise InputError(f"no [MASK] in {text!r}; write it where a word is to be guessed")
        self._gaps = [len(places) for places in gaps]
        positions = np.zeros((len(gaps), max(self._gaps)), np.int32)  # (n, P)
        for row, places in zip(positions, gaps, strict=True):
            row[: len(places)] = places
        self._inputs = {**inputs, "mask_positions": tf.constant(positions)}

    def __call__(self) -> list[list[list[Guess]]]:
        """The most probable words, by text and gap, the best first."""
        logits = self._model(self._inputs, training=False)["mlm_logits"]  # (n, P, V)
        logits = logits[..., : len(self._pieces)]  # tables may be padded
        best = tf.math.top_k(tf.nn.softmax(logits), k=self._guesses)
        probabilities, ids = best.values.numpy(), best.indices.numpy()
        return [
            [
                [
                    Guess(self._pieces[piece], float(probability))
                    for piece, probability in zip(
                        ids[row, gap], probabilities[row, gap], strict=True
                    )
                ]
                for gap in range(gaps)
            ]
            for row, gaps in enumerate(self._gaps)
        ]


class MaskedWordLog(keras.callbacks.Callback):
    """Writes the guesses after every evaluation, as text for TensorBoard.

    Args:
        directory: TensorBoard log folder.
        state: counts the steps, and is told when this was logged.
        words: what to ask; only the process that writes does.
    """

    def __init__(self, directory: str | Path, state: TrainingState, words: MaskedWords) -> None:
        super().__init__()
        self._events = EventFolder(Path(directory) / _LOG)
        self._state = state
        self._words = words
        state.logged.setdefault(_LOG, 0)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        """Asks and writes."""
        self._state.logged[_LOG] = self._state.step
        if not is_chief(self.model.distribute_strategy):
            return
        answers = self._words()
        with self._events.at(self._state.step):
            for number, (text, gaps) in enumerate(zip(self._words.texts, answers, strict=True)):
                tf.summary.text(f"masked_words/{number}", _as_markdown(text, gaps))


def _as_markdown(text: str, gaps: list[list[Guess]]) -> str:
    lines = [text.replace("[MASK]", "**[MASK]**"), ""]
    for guesses in gaps:
        lines.append(", ".join(f"{_as_code(g.piece)} {g.probability:.1%}" for g in guesses))
    return "\n".join(lines)


def _as_code(piece: str) -> str:
    """In Markdown, where a bare * or _ would be read as a mark."""
    return f"`` {piece} ``" if "`" in piece else f"`{piece}`"
