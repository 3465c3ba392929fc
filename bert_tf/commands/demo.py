"""Run all steps on text that every machine has, from raw text to a served model, in minutes.

  bert-tf demo                    # the documentation inside this Python installation
  bert-tf demo --corpus text/     # your own text

Learns a vocabulary, writes shards, pre-trains a small BERT and shows its guesses for masked words.
Then trains two classifiers of where a passage comes from, one from the pre-trained model and one
from random weights, and compares them on held-out passages. Exports the pre-trained one and asks
the SavedModel. Prints each step as a command that you can run yourself.
"""

import random
import re
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from bert_tf.commands import evaluate, export, finetune, predict, pretrain, shards, vocab
from bert_tf.commands.command import Command, CommandOptions, check
from bert_tf.commands.progress import command_line, console, progress
from bert_tf.commands.result import Result
from bert_tf.errors import InputError
from bert_tf.options import PathName, changed_words, option
from bert_tf.startup import share_cores

_LENGTH = 64  # tokens; short, so that minutes are enough
_GUESSES = 8  # sentences with a hidden word
_EPOCHS = 8  # both models' validation scores have stopped rising by then


@dataclass(kw_only=True)
class Options(CommandOptions):
    """Options of `bert-tf demo`."""

    output: PathName = option("runs/demo", writes="folder")
    """folder for everything the demo makes."""
    corpus: list[PathName] = option(factory=list, path=True)
    """your own text instead: files, folders or globs in the format of `bert-tf vocab`."""
    steps: int = option(1500, at_least=1)
    """pre-training steps; with less than half the default, random weights may win."""
    size: str = "tiny"
    """size of the model, as in `bert-tf pretrain`."""
    seed: int = option(1, at_least=0)
    """random seed for the data and the training."""


@dataclass(kw_only=True, repr=False, eq=False)
class DemoResult(Result):
    """The outcome of `demo`.

    Attributes:
        output: folder of everything that was made.
        model: the fine-tuned model, in the format of TensorFlow's SavedModel.
        scores: accuracies on the test passages: "from_pretrained", "from_random", "majority".
        minutes: time that it took.
    """

    output: Path
    model: Path
    scores: dict[str, float]
    minutes: float

    def lines(self) -> list[str]:
        return [
            f"Made in {self.minutes:.1f} minutes: {self.output}",
            f"SavedModel for TensorFlow Serving: {self.model}",
            f"Curves: {command_line('monitor', self.output)}",
        ]


def _run(command: Command[..., Any], **values: Any) -> Any:
    """Prints a `bert-tf` command as a user types it, runs it and prints what it says."""
    options: Any = command.options(**values, verbose=True)
    console.rule(style="dim")
    console.print(f"$ bert-tf {shlex.join([command.name, *changed_words(options)])}", style="bold")
    started = time.perf_counter()
    check(options)
    result = command.run(options)
    command.show(result, options)
    console.print(f"({command.name}: {time.perf_counter() - started:.0f} s)", style="dim")
    return result


def _write_texts(options: Options, corpus: Path, labelled: Path) -> list[str]:
    """Writes labelled passages, and the corpus without those to test on; returns the latter."""
    from bert_tf.pipelines.corpus import installed_documentation
    from bert_tf.pipelines.corpus.sources import find_files
    from bert_tf.pipelines.examples import passages

    if options.corpus:
        documents = passages.read_labelled_documents(find_files(options.corpus))
    else:
        with progress("reading the installed documentation", total=1) as bar:
            documents = installed_documentation.installed_documentation(progress=bar.update)
    written = passages.write_task(
        documents, corpus, labelled, has_names=not options.corpus, seed=options.seed
    )
    console.print(
        f"{corpus}: {corpus.stat().st_size / 1e6:.1f} MB of text, {len(documents)} documents\n"
        + "  ".join(f"{labelled / split}.tsv: {n}" for split, n in written.examples.items())
        + f"\nThe task: which of these is a passage from? {', '.join(written.labels)}",
    )
    return written.left_out


def _show_guesses(model_directory: str, sentences: Sequence[str], seed: int) -> None:
    """Hides a word in each of some sentences drawn at random, and prints the model's guesses."""
    from bert_tf.commands.masked_words import MaskedWords
    from bert_tf.models.language_model import BertPreTrainer
    from bert_tf.models.loading import load_model
    from bert_tf.tokenization.tokenizer import BertTokenizer

    tokenizer = BertTokenizer.from_directory(model_directory)
    known = {piece for piece in tokenizer.vocabulary if piece.isalpha() and len(piece) > 1}
    hidden: dict[str, str] = {}
    draw = random.Random(seed)
    for sentence in draw.sample(sentences, len(sentences)):
        words = re.findall(r"\w+|\W+", sentence)
        positions = [position for position, word in enumerate(words) if word in known]
        # Prose that a person can judge: no code, no lists.
        prose = re.fullmatch(r"[A-Z][\w ,'-]{50,110}\.", sentence)
        if len(hidden) < _GUESSES and prose and positions:
            position = draw.choice(positions)
            word = words[position]
            words[position] = "[MASK]"
            hidden["".join(words)] = word
    if not hidden:
        return
    title = "Words hidden in text that the pre-training has not seen"
    table = Table("sentence", "hidden word", "best guesses", show_lines=True, title=title)
    model = load_model(model_directory, BertPreTrainer)
    guesses = MaskedWords(model, tokenizer, list(hidden), guesses=3)()
    for (text, word), (best, *_) in zip(hidden.items(), guesses, strict=True):
        listed = ", ".join(f"{guess.piece} {guess.probability:.0%}" for guess in best)
        table.add_row(text, word, listed)
    console.print(table)


def _pretrain(options: Options, output: Path) -> None:
    """Pre-trains a model on OUTPUT/corpus.txt."""
    _run(vocab.COMMAND, corpus=[f"{output}/corpus.txt"], output=f"{output}/vocab", size=8192)
    _run(
        shards.COMMAND,
        corpus=[f"{output}/corpus.txt"],
        corpus_format="sentences",
        tokenizer=f"{output}/vocab",
        output=f"{output}/shards",
        max_seq_length=[_LENGTH],
        dupe_factor=2,
        held_out_share=0.02,
        seed=options.seed,
    )
    # A narrow model and a few minutes: no dropout, and larger initial weights, with which it
    # learns more than word frequencies within the first few hundred steps.
    _run(
        pretrain.COMMAND,
        shards=f"{output}/shards",
        size=options.size,
        output=f"{output}/pretrained",
        dropout=0.0,
        initializer_range=0.06,
        batch_size=64,
        steps=options.steps,
        learning_rate=1e-3,
        precision="auto",
        evaluate_every=max(1, options.steps // 8),
        evaluation_batches=30,
        seed=options.seed,
    )


def _accuracy(options: Options, output: Path, name: str, *, from_scratch: bool) -> float:
    """Fine-tunes into OUTPUT/NAME; returns the accuracy on the test passages."""
    folder = f"{output}/{name}"
    # Small models know so few passages by heart after some epochs: these do need dropout. The
    # positions from _LENGTH on are learned here alone.
    _run(
        finetune.COMMAND,
        model=f"{output}/pretrained/best",
        train=f"{output}/labelled/train.tsv",
        validation=f"{output}/labelled/validation.tsv",
        output=folder,
        from_scratch=from_scratch,
        epochs=_EPOCHS,
        learning_rate=2e-4,
        dropout=0.1,
        max_length=2 * _LENGTH,
        seed=options.seed,
    )
    test = f"{output}/labelled/test.tsv"
    result = _run(evaluate.COMMAND, model=f"{folder}/best", data=test, output=f"{folder}/test")
    return result.scores["accuracy"]


def run(options: Options) -> DemoResult:
    """Runs the whole flow, from raw text to a served model, as `bert-tf demo` does.

    Returns:
        Where everything is, and the scores.
    """
    started = time.perf_counter()
    output = Path(options.output)
    if output.exists() or output.is_symlink():
        raise InputError(f"{output} exists already: delete it, or give another --output")
    share_cores()  # before the first command runs TensorFlow's ops
    unseen = _write_texts(options, output / "corpus.txt", output / "labelled")
    _pretrain(options, output)
    _show_guesses(f"{output}/pretrained/best", unseen, options.seed)
    pretrained = _accuracy(options, output, "from_pretrained", from_scratch=False)
    scratch = _accuracy(options, output, "from_random", from_scratch=True)
    exports = f"{output}/saved_models"
    _run(export.COMMAND, model=f"{output}/from_pretrained/best", name="demo", output=exports)
    lines = (output / "labelled" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts, truth = zip(*(line.split("\t") for line in lines), strict=True)
    _run(predict.COMMAND, model=f"{exports}/demo", text=list(texts[:5]))
    console.print("They are from: " + ", ".join(truth[:5]))

    majority = Counter(truth).most_common(1)[0][1] / len(truth)
    title = f"Where is it from? Accuracy on {len(texts)} held-out passages"
    table = Table("model", "accuracy", title=title)
    table.add_row("always the majority class", f"{majority:.1%}")
    table.add_row("fine-tuned from random weights", f"{scratch:.1%}")
    table.add_row("pre-trained, then fine-tuned", f"{pretrained:.1%}")
    console.print(table)
    return DemoResult(
        output=output,
        model=Path(exports) / "demo",
        scores={"from_pretrained": pretrained, "from_random": scratch, "majority": majority},
        minutes=(time.perf_counter() - started) / 60,
    )


COMMAND = Command(name="demo", help=__doc__, options=Options, run=run)
demo = COMMAND.function("demo")
