from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import tiny_config

from bert_tf import BertTokenizer
from bert_tf.commands.int8_calibration import Calibration, make_plan_for
from bert_tf.models.loading import class_of_kind
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.encoder_signatures import ENCODER_SIGNATURES, all_signatures
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

WORDS = "the ship left harbour at dawn ##s sea crew set sail when did leave ? . é 海"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split()]
LABELS = {
    "classification": ["bad", "good"],
    "multi_label": ["calm", "cold", "deep"],
    "tags": ["DT", "NN", "VB"],
    "tagging": ["O", "B-LOC", "I-LOC"],
    "conll2003": ["O", "B-LOC", "I-LOC", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-MISC", "I-MISC"],
}


@pytest.fixture(scope="session")
def export_of(made_once, exports_of) -> Callable[[str], Path]:
    """Version 1 of the export of a task, alone in its folder: "tags", "tags-windows", "tags-int8".

    With "-core" it has the tokenizer's operations of TensorFlow alone.

    Those of "classification" alone have the encoder's signatures, which are the same for all kinds;
    none has "top_20", the default signature with more words.
    """

    def write(root: Path, served: str) -> None:
        name, _, how = served.partition("-")
        windows = {"long_texts": "windows"} if how == "windows" else {}
        config = tiny_config(len(PIECES), max_position_embeddings=64, initializer_range=1.0)
        task = TASKS[name].with_settings({"max_length": 32, **windows})
        head = {"labels": LABELS[name]} if name in LABELS else {}
        model = class_of_kind(task.kind)(config, seed=0, **head)
        tokenizer = BertTokenizer(PIECES, ops="core" if how == "core" else "auto")
        tuned = Answerer(task, model, tokenizer, LABELS.get(name, []))
        if how == "int8":
            texts = ["the ship left .", "sea crew set sails at dawn ?"] * 16
            rows = Examples("rows", list(range(32)), {"text": texts})
            tuned = replace(tuned, plan=make_plan_for(tuned, Calibration(rows, rows)))
        names = all_signatures(task).keys()
        if name != "classification":
            names -= {*ENCODER_SIGNATURES, "top_20"}
        with exports_of(*names):
            tuned.export(served, root=root)

    def export(served: str) -> Path:
        return made_once(f"export_{served}", lambda root: write(root, served)) / served / "1"

    return export
