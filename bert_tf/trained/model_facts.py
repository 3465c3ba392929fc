"""Rows of a model card about a fine-tuned model, from its files alone."""

import contextlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from bert_tf.tasks.overview import describe

if TYPE_CHECKING:
    from bert_tf.trained.fine_tuned import FineTuned

# Alphabets of fewer pieces than this share are not named.
_SMALLEST_SHARE = 0.01


def model_facts(model: "FineTuned", directory: str | Path | None = None) -> dict[str, str]:
    """Subject -> text, for `bert_tf.serving.model_card`.

    Args:
        model: the model.
        directory: its model directory. Scores come from metrics.json in it, the data's names from
            config.yaml of the run that it belongs to.
    """
    config, tokenizer = model.model.config, model.tokenizer
    case = "lower-cased" if tokenizer.settings["do_lower_case"] else "cased"
    precision = "bfloat16" if "bfloat16" in model.model.dtype_policy.name else "float32"
    found = {
        "task": Path(model.task.name).name,
        "kind": dict(describe(model.task))["kind"],
        "labels": ", ".join(model.labels),
        **(_of_run(Path(directory)) if directory else {}),
        "model": f"{config.num_hidden_layers} layers, {config.hidden_size} wide, "
        f"{model.model.count_params():,} parameters, computed in {precision}",
        "text": f"{case}; at most {model.task.max_length} tokens a row",
        "vocabulary": f"{tokenizer.vocabulary_size:,} word pieces; "
        f"{_alphabets(tokenizer.vocabulary)}. The languages of the training text are not recorded.",
    }
    return {subject: text for subject, text in found.items() if text}


def _of_run(directory: Path) -> dict[str, str]:
    """Data and scores of the fine-tuning run that wrote a model directory, if it is one."""
    scores: Any = {}
    options: Any = {}
    with contextlib.suppress(OSError, ValueError):
        scores = json.loads((directory / "metrics.json").read_text(encoding="utf-8"))
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        text = (directory.resolve().parent / "config.yaml").read_text(encoding="utf-8")
        options = yaml.safe_load(text)
    found = {}
    if isinstance(options, dict):
        names = {name: options.get(name) for name in ("data", "train", "validation")}
        found["data"] = ", ".join(f"{name} {value}" for name, value in names.items() if value)
    if isinstance(scores, dict):
        numbers = {key: value for key, value in scores.items() if isinstance(value, int | float)}
        count = numbers.pop("examples", None)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
        found["scores"] = (
            f"{shown} ({count} validation examples, in float32)" if shown and count else shown
        )
    return found


def _alphabets(pieces: Iterable[str]) -> str:
    """Share of each alphabet among the pieces of letters, such as "Latin 93%, Cjk 4%"."""
    written = [piece for piece in pieces if not re.fullmatch(r"\[.+\]", piece)]  # no [CLS]
    first_letters = (re.search(r"[^\W\d_]", piece) for piece in written)
    names = [unicodedata.name(letter[0], "").split(" ")[0] for letter in first_letters if letter]
    counts = Counter(name for name in names if name)
    shares = {name: count / max(1, len(names)) for name, count in counts.most_common()}
    return "letters: " + ", ".join(
        f"{'Chinese characters' if name == 'CJK' else name.capitalize()} {share:.0%}"
        for name, share in shares.items()
        if share >= _SMALLEST_SHARE
    )
