"""Rows of a model card about a fine-tuned model, from its files alone."""

import contextlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import yaml

from bert_tf.tasks.overview import kind_line
from bert_tf.tasks.task import Task
from bert_tf.tokenization.tokenizer import BertTokenizer

_SMALLEST_SHARE = 0.01  # of the pieces, for an alphabet to be named


def model_facts(
    task: Task,
    model: keras.Model,
    tokenizer: BertTokenizer,
    labels: Sequence[str],
    precision: str,
    directory: str | Path | None = None,
) -> dict[str, str]:
    """Subject -> text, for `bert_tf.serving.export.model_card`; scores are in `directory`."""
    case = "lower-cased" if tokenizer.settings["do_lower_case"] else "cased"
    found = {
        "task": Path(task.name).name,
        "kind": kind_line(task),
        "labels": ", ".join(labels),
        **(_of_run(Path(directory)) if directory else {}),
        "model": f"{model.config.num_hidden_layers} layers, {model.config.hidden_size} wide, "
        f"{model.count_params():,} parameters, computed in {precision}",
        "text": f"{case}; at most {task.max_length} tokens a row",
        "vocabulary": f"{tokenizer.vocabulary_size:,} word pieces; "
        f"{_alphabets(tokenizer.vocabulary)}. The languages of the training text are not recorded.",
    }
    return {subject: text for subject, text in found.items() if text}


def run_options(directory: str | Path) -> dict[str, Any]:
    """The options of the run that wrote a model directory, as far as they are recorded."""
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        text = (Path(directory).resolve().parent / "config.yaml").read_text(encoding="utf-8")
        if isinstance(options := yaml.safe_load(text), dict):
            return options
    return {}


def _of_run(directory: Path) -> dict[str, str]:
    """Data and scores of the fine-tuning run that wrote a model directory, if it is one."""
    scores: Any = None
    with contextlib.suppress(OSError, ValueError):
        scores = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
    options = run_options(directory)
    names = ("data", "train", "validation")
    found = {"data": ", ".join(f"{n} {options[n]}" for n in names if options.get(n))}
    if isinstance(scores, dict):
        numbers = {key: value for key, value in scores.items() if isinstance(value, int | float)}
        count = numbers.pop("examples", None)
        found["scores"] = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        if found["scores"] and count:
            found["scores"] += f" ({count} validation examples, in float32)"
    return found


def _alphabets(pieces: Iterable[str]) -> str:
    """Share of each alphabet among the pieces of letters, such as "Latin 93%, Cjk 4%"."""
    written = [piece for piece in pieces if not re.fullmatch(r"\[.+\]", piece)]  # no [CLS]
    letters = (re.search(r"[^\W\d_]", piece) for piece in written)
    names = [unicodedata.name(letter[0], "").split(" ")[0] for letter in letters if letter]
    counts = Counter(name for name in names if name)
    return "letters: " + ", ".join(
        f"{'Chinese characters' if name == 'CJK' else name.capitalize()} {count / len(names):.0%}"
        for name, count in counts.most_common()
        if count / len(names) >= _SMALLEST_SHARE
    )
