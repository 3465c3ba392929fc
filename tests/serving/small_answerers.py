"""Small answerers, to be asked in other engines."""

from dataclasses import replace
from typing import Any

from tiny import tiny_config

from bert_tf import BertTokenizer
from bert_tf.commands.int8_calibration import Calibration, make_plan_for
from bert_tf.models.loading import class_of_kind
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

WORDS = "the ship left harbour at dawn ##s sea crew ? . é 海"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
TEXTS = ["the ship left .", "", "crew at dawn ? " * 12, "sea\xad crews 海", "left"]
LABELS = {
    "classification": ["bad", "good"],
    "pairs": ["no", "yes"],
    "multi_label": ["calm", "cold", "deep"],
}


def answerer_of(name: str, **settings: Any) -> Answerer:
    config = tiny_config(len(PIECES), max_position_embeddings=32, initializer_range=1.0)
    task = TASKS["classification" if name == "pairs" else name].with_settings({"max_length": 16})
    task = replace(task, pair="text_pair") if name == "pairs" else task
    head = {"labels": LABELS[name]} if name in LABELS else {}
    model = class_of_kind(task.kind)(config, seed=0, **head)
    answerer = Answerer(task, model, BertTokenizer(PIECES), LABELS.get(name, []))
    return replace(answerer, **settings)


def int8_answerer() -> Answerer:
    answerer = answerer_of("classification")
    rows = Examples("rows", list(range(len(TEXTS))), {"text": TEXTS})
    return replace(answerer, plan=make_plan_for(answerer, Calibration(rows, rows)))
