"""What a model card says of a model: its task, data, scores, size and vocabulary."""

import contextlib
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from bert_tf.errors import InputError
from bert_tf.files.model_files import read_json, read_small_file

METRICS_FILE = "metrics.json"


def model_facts(answerer: Any, directory: str | Path | None) -> dict[str, str]:
    """Rows of an `Answerer`'s model card, subject -> text; `directory` has data and scores."""
    tokenizer = answerer.tokenizer
    config = answerer.model.config
    case = "lower-cased" if tokenizer.settings["do_lower_case"] else "cased"
    facts = {
        "task": Path(answerer.task.name).name,
        "kind": answerer.task.kind_line,
        "labels": ", ".join(answerer.labels),
        **(_facts_of_run(Path(directory)) if directory else {}),
        "model": f"{config.num_hidden_layers} layers, {config.hidden_size} wide, "
        f"{answerer.model.count_params():,} parameters, computed in {answerer.precision}",
        "text": f"{case}; at most {answerer.max_length} tokens a row",
        "vocabulary": f"{tokenizer.vocabulary_size:,} word pieces; "
        f"{_alphabets(tokenizer.vocabulary)}. The languages of the training text are not "
        "recorded.",
    }
    return {subject: text for subject, text in facts.items() if text}


def run_options(directory: str | Path) -> dict[str, Any]:
    """The options of the run that wrote a model directory, as far as they are recorded."""
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        content = read_small_file(Path(directory).resolve().parent / "config.yaml")
        if isinstance(options := yaml.safe_load(content.decode("utf-8")), dict):
            return options
    return {}


def _facts_of_run(directory: Path) -> dict[str, str]:
    """Data and scores of the fine-tuning run that wrote a model directory, if it is one."""
    options = run_options(directory)
    names = ("data", "train", "validation")
    facts = {"data": ", ".join(f"{n} {options[n]}" for n in names if options.get(n))}
    with contextlib.suppress(InputError):  # there is no such file
        scores = read_json(directory / METRICS_FILE)
        numbers = {key: value for key, value in scores.items() if isinstance(value, int | float)}
        count = numbers.pop("examples", None)
        facts["scores"] = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        if facts["scores"] and count:
            facts["scores"] += f" ({count} validation examples, in float32)"
    return facts


def _alphabets(pieces: Sequence[str]) -> str:
    """Alphabets of 1% or more of the pieces of letters, such as "Latin 93%, Cjk 4%"."""
    written = [piece for piece in pieces if not re.fullmatch(r"\[.+\]", piece)]  # no [CLS]
    letters = (re.search(r"[^\W\d_]", piece) for piece in written)
    names = [unicodedata.name(letter[0], "").split(" ")[0] for letter in letters if letter]
    counts = Counter(name for name in names if name)
    return "letters: " + ", ".join(
        f"{'Chinese characters' if name == 'CJK' else name.capitalize()} {count / len(names):.0%}"
        for name, count in counts.most_common()
        if count / len(names) >= 0.01
    )
