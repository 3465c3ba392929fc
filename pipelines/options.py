"""Options of the data pipelines; importing them is quick, for the command line."""

import math
from dataclasses import dataclass
from typing import Literal

from bert_tf.errors import InputError


@dataclass
class CorpusOptions:
    """How text is read.

    Args:
        corpus_format: sentences (a sentence a line, a blank line between documents), text (plain
            text in paragraphs, a document a file) or jsonl (an object a line, its text in a
            field); auto takes files named *.jsonl for jsonl and others for sentences.
        text_field: field of JSON objects, or feature of TensorFlow Datasets, that has the text.
        tfds_data_dir: folder of TensorFlow Datasets, where they are read from and downloaded to; by
            default TFDS_DATA_DIR, or else ~/tensorflow_datasets.
        skip_unreadable: leave out files that cannot be read, and count them, instead of stopping.
    """

    corpus_format: Literal["auto", "sentences", "text", "jsonl"] = "auto"
    text_field: str = "text"
    tfds_data_dir: str | None = None
    skip_unreadable: bool = False

    def __post_init__(self):
        formats = ("auto", "sentences", "text", "jsonl")
        if self.corpus_format not in formats:
            raise InputError(
                f"corpus_format is {self.corpus_format!r}; it must be one of {', '.join(formats)}"
            )


@dataclass
class PretrainingDataOptions(CorpusOptions):
    """How pre-training instances are made.

    Args:
        max_seq_length: tokens of an instance, [CLS] and both [SEP] included.
        max_predictions_per_seq: most tokens to predict in an instance; by default masked_lm_prob
            of max_seq_length, rounded up (20 for 128, 77 for 512).
        masked_lm_prob: share of the tokens to predict.
        masking: static writes the masks into the shards, with the original's features; dynamic
            writes the text unmasked, in two fifths of the space, and training draws fresh masks
            every epoch: the right choice for new work.
        whole_word_masking: mask all pieces of a word or none.
        max_ngram: mask runs of up to so many whole words; 1 masks words apart.
        instances: sentence_pairs, for masked words and next sentences; full_sentences fills each
            instance with consecutive sentences, for masked words alone.
        short_seq_prob: share of the documents whose instances are shorter than max_seq_length.
        dupe_factor: times the corpus is gone through, with other pairs and masks each time (the
            original's default is 10).
        held_out_share: share of the text kept apart for evaluation, by document.
        num_shards: files the training instances are spread over, at least; a large corpus has one
            for every 32 MB of text and each of the dupe_factor rounds.
        seed: two runs with one seed write the same bytes.
        buffer_bytes: text held at once. A random next sentence comes from it, and instances are
            shuffled in it.
    """

    max_seq_length: int = 128
    max_predictions_per_seq: int | None = None
    masked_lm_prob: float = 0.15
    masking: Literal["static", "dynamic"] = "static"
    whole_word_masking: bool = False
    max_ngram: int = 1
    instances: Literal["sentence_pairs", "full_sentences"] = "sentence_pairs"
    short_seq_prob: float = 0.1
    dupe_factor: int = 1
    held_out_share: float = 0.01
    num_shards: int = 8
    seed: int = 1279
    buffer_bytes: int = 4 << 20

    def __post_init__(self):
        super().__post_init__()
        if self.max_predictions_per_seq is None:
            # The subtraction keeps 0.15 * 20, which floats put above 3, from giving 4.
            self.max_predictions_per_seq = math.ceil(
                self.masked_lm_prob * self.max_seq_length - 1e-9
            )
        for name, valid, expected in (
            ("max_seq_length", self.max_seq_length >= 5, "at least 5"),
            ("max_predictions_per_seq", self.max_predictions_per_seq >= 1, "at least 1"),
            ("masked_lm_prob", 0 < self.masked_lm_prob < 1, "between 0 and 1"),
            ("masking", self.masking in ("static", "dynamic"), "static or dynamic"),
            ("max_ngram", self.max_ngram >= 1, "at least 1"),
            (
                "instances",
                self.instances in ("sentence_pairs", "full_sentences"),
                "sentence_pairs or full_sentences",
            ),
            ("short_seq_prob", 0 <= self.short_seq_prob <= 1, "from 0 to 1"),
            ("dupe_factor", self.dupe_factor >= 1, "at least 1"),
            ("held_out_share", 0 <= self.held_out_share < 1, "from 0 to below 1"),
            ("num_shards", self.num_shards >= 1, "at least 1"),
            ("buffer_bytes", self.buffer_bytes >= 1, "at least 1"),
        ):
            if not valid:
                raise InputError(f"{name} is {getattr(self, name)}; it must be {expected}")
