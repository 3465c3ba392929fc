"""The stages that make data: text, vocabulary and shards; and the examples of a task."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bert_tf.commands.search import Options as SearchOptions
from bert_tf.commands.settings_search import data_content
from bert_tf.files.atomic import replace_directory
from bert_tf.files.storage import sha256
from bert_tf.paper.stage import FOLDER, Cache, Show, Stage, chosen_options
from bert_tf.paper.step_speed import StepSpeed
from bert_tf.pipelines.corpus.formats import input_errors, read_lines
from bert_tf.pipelines.corpus.installed_documentation import installed_documentation
from bert_tf.pipelines.corpus.sources import open_corpus
from bert_tf.pipelines.data_options import CorpusOptions, PretrainingDataOptions
from bert_tf.pipelines.examples.passages import write_task
from bert_tf.pipelines.examples.reading import is_dataset_name
from bert_tf.pipelines.shards.manifest import FILE_NAME, Manifest
from bert_tf.pipelines.shards.run import write_shards
from bert_tf.tokenization import BertTokenizer, count_words, learn_vocabulary

BYTES_PER_TOKEN = 5  # of text; 4.5 in English
_INSTANCE_BYTES = 3.5  # of shards with dynamic masks, per token


@dataclass(frozen=True, eq=False, kw_only=True)
class Documentation(Stage):
    """The installed documentation: a corpus, and a task of telling its packages apart."""

    title: str = "text: documentation of the installed packages"
    # Text once written is kept when packages change.
    identity = {"seed": 1}  # noqa: RUF012
    bytes = 10_000_000  # the next version of a package has more

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        with replace_directory(cache.of(self)) as folder:
            documents = installed_documentation(progress=show)
            file = folder / "corpus.txt"
            written = write_task(documents, file, folder, has_names=True, **self.identity)
        return {"documents": len(documents), "examples": written.examples}

    def seconds(self, speed: StepSpeed) -> float:
        return self.bytes / 3e5


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """The text to pre-train on: a user's, or the documentation."""

    named: Sequence[str]  # files, folders, globs or data sets
    options: CorpusOptions

    @functools.cached_property
    def stage(self) -> Documentation | None:
        """The stage that makes it; None for text of the user."""
        return None if self.named else Documentation()

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        if self.stage:
            return {}
        opened = open_corpus(self.named, self.options)
        content = [sha256(Path(file)) for file in opened.files]
        content += [source for source in opened.sources if source not in opened.files]
        return {"corpus": content, **chosen_options(self.options)}

    @functools.cached_property
    def text_bytes(self) -> int:
        if self.stage:
            return self.stage.bytes
        return open_corpus(self.named, self.options).text_bytes

    def paths(self, cache: Cache) -> list[str]:
        """Files or names of data sets, once the stage is finished."""
        return [str(cache.of(self.stage) / "corpus.txt")] if self.stage else [*self.named]


@dataclass(frozen=True, eq=False, kw_only=True)
class Vocabulary(Stage):
    title: str = "vocabulary"
    corpus: Corpus
    size: int
    do_lower_case: bool

    @property
    def identity(self) -> dict[str, Any]:
        return {"size": self.size, "do_lower_case": self.do_lower_case, **self.corpus.identity}

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        corpus = open_corpus(self.corpus.paths(cache), self.corpus.options)
        with input_errors():
            lines = read_lines(corpus)
            counts = count_words(lines, do_lower_case=self.do_lower_case, progress=show)
        # Its remarks are about the text, which all systems of a table share.
        pieces = learn_vocabulary(counts, self.size, notice=lambda line: None)
        with replace_directory(cache.of(self)) as folder:
            BertTokenizer(pieces, do_lower_case=self.do_lower_case).save(folder)
        return {"pieces": len(pieces)}

    def seconds(self, speed: StepSpeed) -> float:
        return self.corpus.text_bytes / 1.5e6


@dataclass(frozen=True, eq=False, kw_only=True)
class Shards(Stage):
    """Pre-training instances of the vocabulary's corpus; options for each of one or two lengths."""

    title: str = "shards"
    vocabulary: Vocabulary
    options: Sequence[PretrainingDataOptions]

    @property
    def identity(self) -> dict[str, Any]:
        return {"lengths": [chosen_options(one) for one in self.options]}

    @property
    def lengths(self) -> list[int]:
        return [one.max_seq_length for one in self.options]

    def folders(self, cache: Cache) -> list[Path]:
        names = map(str, self.lengths) if len(self.lengths) > 1 else [""]
        return [cache.of(self) / name for name in names]

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        # Complete if an earlier call was killed before its record.
        if all((folder / FILE_NAME).is_file() for folder in self.folders(cache)):
            manifests = [Manifest.load(folder) for folder in self.folders(cache)]
        else:
            manifests = write_shards(
                self.vocabulary.corpus.paths(cache),
                cache.of(self),
                BertTokenizer.from_directory(cache.of(self.vocabulary)),
                *self.options,
                progress=lambda done: show(done.bytes_read, done.total_bytes),
            )
        splits = ("train", "held_out")
        return {"instances": [{s: manifest.instances(s) for s in splits} for manifest in manifests]}

    def seconds(self, speed: StepSpeed) -> float:
        return self.vocabulary.corpus.text_bytes / 1e6

    @property
    def bytes(self) -> float:
        passes = self.options[0].dupe_factor * len(self.options)
        return self.vocabulary.corpus.text_bytes / BYTES_PER_TOKEN * passes * _INSTANCE_BYTES


@dataclass(frozen=True, eq=False)
class TaskData:
    """The examples of a task: a user's, or passages of the documentation if `train` is empty."""

    task: str
    train: str = ""  # a data set, a folder or a file
    validation: str | None = None  # a file, if `train` is one

    @functools.cached_property
    def stage(self) -> Documentation | None:
        """The stage that makes it; None for data of the user."""
        return None if self.train else Documentation()

    @functools.cached_property
    def content(self) -> list[str]:
        """Names of data sets, and a hash of files."""
        options = SearchOptions(model=FOLDER, output=FOLDER, **self.options(None))
        paths = (self.train, self.validation or "")
        return [*filter(is_dataset_name, paths), data_content(options)]

    def options(self, cache: Cache | None) -> dict[str, Any]:
        """Its options in `SearchOptions`; without a cache, passages have placeholders for files."""
        train = self.train
        validation = self.validation
        if self.stage is not None:
            folder = cache.of(self.stage) if cache else Path(FOLDER)
            train = f"{folder}/train.tsv"
            validation = f"{folder}/validation.tsv"
        return {"task": self.task, "data": train, "validation": validation}
