"""Do all of it on text that is on every machine: from raw text to a served model, in minutes.

  bert-tf demo                    # the documentation inside this Python installation
  bert-tf demo --corpus text/     # your own text

Learns a vocabulary, writes shards, pre-trains a small BERT, fine-tunes it to tell where a passage
comes from, and does the same from random weights; compares both on held-out passages, exports the
pre-trained one and answers five of them from the SavedModel. Each step is shown as the command
that does it.
"""

import json
import shlex
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bert_tf.cli.main import main
from bert_tf.cli.progress import console, progress, typed
from bert_tf.errors import InputError
from pipelines.corpus.installed_documentation import STANDARD_LIBRARY, installed_documentation

if TYPE_CHECKING:
    from pipelines.examples.passages import LabelledDocument

# Packages told apart; and the words that would give them away.
_PACKAGES = 8
_NAMES = {
    "tensorflow": ["tensorflow", "tf"],
    "tensorflow_datasets": ["tensorflow_datasets", "tensorflow datasets", "tfds"],
    "tensorflow_text": ["tensorflow_text", "tensorflow text", "tf_text", "tf text"],
    "numpy": ["numpy", "np"],
    STANDARD_LIBRARY: ["python", "cpython", "python's"],
    "keras_hub": ["keras_hub", "kerashub", "keras hub", "keras_nlp", "kerasnlp"],
    "huggingface_hub": ["huggingface_hub", "huggingface", "hugging face", "hf", "hf_hub"],
}
_LENGTH = 64  # tokens; short, so that minutes are enough
_EXAMPLES_PER_LABEL = {"train": 100, "validation": 25, "test": 100}


@dataclass(kw_only=True)
class Options:
    """Options of `bert-tf demo`.

    Attributes:
        output: folder of everything the demo makes.
        corpus: your own text instead: files, folders or globs in the format of `bert-tf vocab`.
        steps: pre-training steps.
        size: of the model.
        seed: of everything drawn.
    """

    output: str = "runs/demo"
    corpus: list[str] = field(default_factory=list)
    steps: int = 2500
    size: str = "tiny"
    seed: int = 1


def _command(name: str, /, **options: Any) -> None:
    """Shows a `bert-tf` command as one would type it, then runs it in this process."""
    arguments = [name]
    for option, value in options.items():
        if value is False:
            continue
        arguments.append(f"--{option}")
        if isinstance(value, list):
            arguments += value
        elif value is not True:
            arguments.append(str(value))
    console.rule(style="dim")
    console.print(f"$ bert-tf {shlex.join(arguments)}", style="bold", markup=False)
    started = time.perf_counter()
    if code := main(arguments):
        raise SystemExit(code)
    console.print(f"({name}: {time.perf_counter() - started:.0f} s)", style="dim", markup=False)


def _documentation() -> "tuple[list[LabelledDocument], list[int], list[str]]":
    """Every documented module, the numbers of those to be told apart, and names to hide."""
    from pipelines.examples.passages import LabelledDocument

    with progress("reading the installed documentation", total=1) as bar:
        modules = installed_documentation(progress=bar.update)
    documents = [LabelledDocument(m.package, m.docstrings) for m in modules]
    sizes = Counter[str]()
    for document in documents:
        # pip carries other packages inside: its text would have two right answers.
        if document.label != "pip":
            sizes[document.label] += len(document.paragraphs)
    packages = {package for package, _ in sizes.most_common(_PACKAGES)}
    names = [
        name
        for package in packages
        for name in _NAMES.get(package, [package, package.replace("_", " ")])
    ]
    return documents, [i for i, d in enumerate(documents) if d.label in packages], names


def _own_text(corpus: list[str]) -> "tuple[list[LabelledDocument], list[int], list[str]]":
    """The user's documents, the numbers of those in the files with most text, no names."""
    from pipelines.corpus.sources import find_files
    from pipelines.examples.passages import read_labelled_documents

    documents = read_labelled_documents(find_files(corpus))
    sizes = Counter(document.label for document in documents)
    labels = {label for label, _ in sizes.most_common(_PACKAGES)}
    return documents, [i for i, d in enumerate(documents) if d.label in labels], []


def _write_texts(options: Options, corpus: Path, labelled: Path) -> None:
    """Writes the labelled passages, and the corpus without the documents they are tested on."""
    from pipelines.examples.passages import labelled_passages, write_corpus, write_labelled

    documents, told_apart, names = _own_text(options.corpus) if options.corpus else _documentation()
    splits, held_out = labelled_passages(
        [documents[i] for i in told_apart],
        names=names,
        examples_per_label=_EXAMPLES_PER_LABEL,
        seed=options.seed,
    )
    for split, examples in splits.items():
        write_labelled(labelled / f"{split}.tsv", examples)
    left_out = {told_apart[i] for i in held_out}
    write_corpus(corpus, (d for i, d in enumerate(documents) if i not in left_out))
    labels = sorted({label for _, label in splits["train"]})
    console.print(
        f"{corpus}: {corpus.stat().st_size / 1e6:.1f} MB of text, {len(documents)} documents\n"
        + "  ".join(f"{labelled / split}.tsv: {len(e)}" for split, e in splits.items())
        + f"\nThe task: which of these is a passage from? {', '.join(labels)}",
        markup=False,
    )


def run(options: Options) -> None:
    """Runs `bert-tf demo`."""
    from pipelines.examples.labelled_text import read_labelled_text

    started = time.perf_counter()
    output = Path(options.output)
    if output.exists():
        raise InputError(f"{output} is there already: delete it, or give another --output")
    places = {
        name: str(output / name)
        for name in ("corpus.txt", "labelled", "vocab", "shards", "pretrained", "from_pretrained",
                     "from_random", "saved_models")
    }  # fmt: skip
    _write_texts(options, Path(places["corpus.txt"]), Path(places["labelled"]))
    _command("vocab", corpus=[places["corpus.txt"]], output=places["vocab"], size=8192)
    _command(
        "shards", corpus=[places["corpus.txt"]], tokenizer=places["vocab"], output=places["shards"],
        max_seq_length=_LENGTH, dupe_factor=2, held_out_share=0.02, seed=options.seed,
    )  # fmt: skip
    # A narrow model for a few minutes: no dropout, and weights that start larger, so that it gets
    # past the frequencies of words within the first few hundred steps.
    _command(
        "pretrain", shards=places["shards"], size=options.size, output=places["pretrained"],
        dropout=0.0, initializer_range=0.06, batch_size=32, steps=options.steps,
        learning_rate=1e-3, evaluate_every=max(1, options.steps // 4), evaluation_batches=20,
        seed=options.seed,
    )  # fmt: skip
    labelled = {split: str(output / "labelled" / f"{split}.tsv") for split in _EXAMPLES_PER_LABEL}
    for name, from_scratch in (("from_pretrained", False), ("from_random", True)):
        _command(
            "finetune", model=f"{places['pretrained']}/best", train=labelled["train"],
            validation=labelled["validation"], output=places[name], from_scratch=from_scratch,
            epochs=8, learning_rate=7e-4, max_length=_LENGTH, seed=options.seed,
        )  # fmt: skip
        _command(
            "evaluate", model=f"{places[name]}/best", data=labelled["test"],
            output=f"{places[name]}/test",
        )  # fmt: skip
    _command(
        "export", model=f"{places['from_pretrained']}/best", name="demo",
        output=places["saved_models"],
    )  # fmt: skip
    test = read_labelled_text(labelled["test"], text_column="text", label_column="label")
    truth = test.labels or []
    _command("predict", model=f"{places['saved_models']}/demo", text=test.texts[:5])
    console.print("They are from: " + ", ".join(truth[:5]), markup=False)

    majority = Counter(truth).most_common(1)[0][1] / len(truth)
    scores = {
        name: json.loads((Path(places[name]) / "test" / "metrics.json").read_text())["accuracy"]
        for name in ("from_pretrained", "from_random")
    }
    table = Table(title=f"Where is it from? Accuracy on {len(test.texts)} held-out passages")
    table.add_column("model")
    table.add_column("accuracy", justify="right")
    table.add_row("always the majority class", f"{majority:.1%}")
    table.add_row("fine-tuned from random weights", f"{scores['from_random']:.1%}")
    table.add_row("pre-trained, then fine-tuned", f"{scores['from_pretrained']:.1%}")
    console.print(table)
    minutes = (time.perf_counter() - started) / 60
    console.print(
        f"Made in {minutes:.1f} minutes: {output}\n"
        f"SavedModel for TensorFlow Serving: {places['saved_models']}/demo\n"
        f"Curves: {typed('bert-tf')} monitor {output}",
        markup=False,
    )
