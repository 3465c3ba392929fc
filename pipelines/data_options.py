"""Options of the data pipelines; importing them is quick, for the command line."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, option


@dataclass(kw_only=True)
class CorpusOptions(CheckedOptions):
    """How text is read."""

    corpus_format: Literal["auto", "sentences", "text", "sections", "jsonl", "parquet"] = "auto"
    """sentences (a sentence per line, a blank line between documents), text (plain text in
    paragraphs, a document per file), sections (text with two blank lines between documents, such as
    chapters), jsonl (an object per line) or parquet (a row per document); auto reads files named
    *.jsonl, *.json and *.parquet as these, and others as sentences or text, by where sentences end
    in their lines; up to three files of text as sections, if instances are sentence pairs."""
    text_field: str = "text"
    """text field of JSON objects, column of Parquet files or feature of TensorFlow Datasets;
    several (title,text) are joined into one document, and missing ones are counted."""
    tfds_data_dir: str | None = None
    """folder of TensorFlow Datasets, for reading and downloading; by default TFDS_DATA_DIR, or else
    ~/tensorflow_datasets."""
    skip_unreadable: bool = False
    """skip and count files that cannot be read, instead of stopping."""
    skip_bad_lines: bool = False
    """skip and count JSON lines and Parquet rows without text, instead of stopping."""

    @property
    def text_fields(self) -> list[str]:
        return [name.strip() for name in self.text_field.split(",")]


@dataclass(kw_only=True)
class PretrainingDataOptions(CorpusOptions):
    """How pre-training instances are made."""

    max_seq_length: int = option(128, at_least=5, at_most=2**16)
    """tokens per instance, [CLS] and both [SEP] included."""
    max_predictions_per_seq: int | None = option(None, at_least=1, at_most=2**16)
    """maximum number of masked tokens per instance; by default masked_lm_prob times max_seq_length,
    rounded up (20 for 128, 77 for 512)."""
    masked_lm_prob: float = option(0.15, above=0, below=1)
    """share of the tokens to mask and predict."""
    mask_token_share: float = option(0.8, at_least=0, at_most=1)
    """share of the masked tokens to replace by [MASK]."""
    random_token_share: float = option(0.1, at_least=0, at_most=1)
    """share of the masked tokens to replace by a random token; the rest stay unchanged (paper,
    appendix C.2)."""
    masking: Literal["static", "dynamic"] = "static"
    """static stores masks in the shards, with the original's features; dynamic stores unmasked text
    in two fifths of the space, and training draws new masks in every epoch: the right choice for
    new work."""
    whole_word_masking: bool = False
    """mask all pieces of a word or none."""
    max_ngram: int = option(1, at_least=1, at_most=32)
    """longest run of whole words to mask together; 1 masks words independently."""
    instances: Literal["sentence_pairs", "full_sentences"] = "sentence_pairs"
    """sentence_pairs, for masked words and next sentences; full_sentences fills each instance with
    consecutive sentences, for masked words alone."""
    cut_long_sentences: bool = True
    """split a sentence (or line) that is longer than an instance into consecutive parts; otherwise
    truncate it, as the original does."""
    short_seq_prob: float = option(0.1, at_least=0, at_most=1)
    """share of documents whose instances are shorter than max_seq_length."""
    instances_per_row: int = option(1, at_least=1, at_most=256)
    """pack up to this many short instances into one row of max_seq_length tokens, each seeing only
    itself: less padding in fixed shapes, for GPUs and TPUs; a batch then counts rows. 1 packs
    none."""
    # Every pass and shard of a group is an open file.
    dupe_factor: int = option(1, at_least=1, at_most=100)
    """passes over the corpus, with different pairs and masks in each (the original's default is
    10)."""
    held_out_share: float = option(0.01, at_least=0, below=1)
    """share of the documents to hold out for evaluation, chosen by a hash of their beginning:
    duplicates stay together, and added documents move no other."""
    max_tokens: int | None = option(None, at_least=1, at_most=2**50)
    """approximate number of tokens of text to use, drawn throughout the corpus in units of some
    32 MB; by default all."""
    max_held_out_bytes: int | None = option(None, at_least=1, at_most=2**50)
    """approximate upper bound of the text to hold out: a large corpus then holds out a smaller
    share."""
    num_shards: int = option(8, at_least=1, at_most=200)
    """minimum number of files for the training instances; a large corpus has one for every 32 MB of
    text in each of the dupe_factor passes."""
    seed: int = option(12345, at_least=0, below=2**31)
    """random seed; the same seed writes the same bytes."""
    buffer_bytes: int = option(4 << 20, at_least=1, at_most=2**40)
    """bytes of text in memory at once; random next sentences are drawn from them, and instances are
    shuffled within them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        masked = self.mask_token_share
        random = self.random_token_share
        if masked + random > 1 + 1e-9:  # 0.9 + 0.1 and the like may round above 1
            raise InputError(
                f"mask_token_share {masked:g} and random_token_share {random:g} are more than 1 "
                "together: lower one of them"
            )
        if self.max_predictions_per_seq is None:
            # The subtraction keeps 0.15 * 20, which floats put above 3, from giving 4.
            predictions = math.ceil(self.masked_lm_prob * self.max_seq_length - 1e-9)
            self.max_predictions_per_seq = max(1, predictions)

    def data_settings(self) -> dict[str, Any]:
        """The options of the data by name, without a subclass's options."""
        return {field.name: getattr(self, field.name) for field in fields(PretrainingDataOptions)}
