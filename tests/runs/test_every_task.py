"""A task of every kind, on 20 rows: learns, is evaluated, exported and loaded again."""

import json
from dataclasses import replace

import pytest
from cases import for_each
from rounding import assert_equal_but_for_rounding
from tiny import tiny_config

from bert_tf import BertTokenizer, save_model
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.models.encoder import encoder_for
from bert_tf.serving.predictor import Predictor, answer
from bert_tf.tasks.kinds.choice import Choice
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.kinds.multi_label import MultiLabel
from bert_tf.tasks.kinds.regression import Regression
from bert_tf.tasks.kinds.sentence_embedding import SentenceEmbedding
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.kinds.tagging import Tagging, Tags
from bert_tf.tasks.model_task import read_settings
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.opening import load_answerer

WORDS = ["sea", "ship", "wave", "farm", "cow", "barn"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]


def make_encoder(folder, direction="both"):
    values = {"initializer_range": 0.2, "attention_direction": direction, "dropout": 0.0}
    config = tiny_config(len(PIECES), "1x16x2", **values)
    save_model(encoder_for(config, 1, None)[0], folder, tokenizer=BertTokenizer(PIECES))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder"))


def label_row(i):
    """The text names its labels: none, one or two."""
    words = [word for number, word in enumerate(WORDS[:2]) if (i >> number) % 2]
    return {"text": " ".join([WORDS[3 + i % 3], *words]), "label": words}


def pair_row(i):
    first, second = PAIRS[i % len(PAIRS)]
    more = WORDS[i // len(PAIRS)]
    return {"text": f"{first} {second} {more}", "text_pair": f"{more} {first} {second}"}


def tags_row(i):
    words = [WORDS[(i + k) % 6] for k in range(1 + i % 3)]
    return {"words": words, "label": [("NN", "VB", ",")[WORDS.index(word) % 3] for word in words]}


def choice_row(i):
    """The right choice names the sea."""
    choices = ["sea" if place == i % 4 else WORDS[1 + (i + place) % 5] for place in range(4)]
    return {"context": WORDS[i % 6], "choices": choices, "label": i % 4}


def question_row(i):
    """The answer is "barn", if there is one."""
    words = [WORDS[(i + k) % 5] for k in range(6)]
    words[i % 6] = "barn" if i % 4 else words[i % 6]
    context = " ".join(words)
    answers = [{"text": "barn", "answer_start": context.index("barn")}] if i % 4 else []
    return {"id": str(i), "question": WORDS[i % 5], "context": context, "answers": answers}


def number_row(i):
    return {"text": f"{WORDS[i % 3]} {WORDS[3 + i % 3]}", "label": (0.5, 1.25, 4.75)[i % 3]}


def cola_line(i):
    return f"x\t{i % 2}\t*\t{WORDS[i % 2]} {WORDS[3 + i % 3]}\n"


def word_lines(i):
    """A word tells its entity."""
    entity = (WORDS[i % 2], f"I-{('LOC', 'PER')[i % 2]}")
    words = [(WORDS[4], "O")] * (i % 3) + [entity] * (1 + i % 2)
    lines = "".join(f"{word} NN {label}\n" for word, label in [*words, (WORDS[5], "O")])
    return ("-DOCSTART- -X- O O\n\n" if i % 4 != 3 else "") + lines + "\n"


PAIRS = [(a, b) for a in WORDS for b in WORDS if a < b]
# Kind -> ending of its file, and a row of it.
FILES = {
    Choice: ("jsonl", choice_row),
    Classification: ("tsv", cola_line),
    MultiLabel: ("jsonl", label_row),
    Regression: ("jsonl", number_row),
    SentenceEmbedding: ("jsonl", pair_row),
    Tagging: ("conll", word_lines),
    Tags: ("jsonl", tags_row),
    Span: ("jsonl", question_row),
}


# How a run learns and what an export computes is up to the kind: a task of each is trained here,
# and resumed in tests/frozen. So is each kind of model at least once: one that reads from one side
# or from both, a BiLSTM on top, LSTM language models, features of an encoder, as ELMo's, too; and
# documents and windows over texts.
_CASES = [
    ("cola", "features_only"),
    ("regression", "left_to_right"),
    ("choice", "bilstm"),
    ("squad2", "recurrent"),
    ("tagging", "elmo"),
    ("conll2003_documents", ""),
    ("tags", "left_to_right+right_to_left"),
    ("multi_label", "windows"),
    ("embedding", ""),
]
_OPTIONS = {"features_only": {"features_only": "last"}, "elmo": {"features_only": "mix"}}
_OPTIONS |= {"bilstm": {"bilstm": True}, "windows": {"long_texts": "windows"}}
_KINDS = {type(task.kind) for task in TASKS.values() if task.kind.is_trained}
assert {type(TASKS[name].kind) for name, _ in _CASES} == _KINDS


@pytest.mark.slow  # tests/runs/test_commands.py goes this way for one task each time
@for_each("name trained", *_CASES)
def test_a_task_learns_is_evaluated_exported_and_loaded(
    name, trained, encoder, tmp_path, monkeypatch, exports_of
):
    monkeypatch.setattr("bert_tf.paper.feature_encoder.LSTM_UNITS", 32)  # 384 take long to write
    if "left_to_right" in trained:
        encoder = make_encoder(tmp_path / "encoder", trained)
    elif trained in ("elmo", "recurrent"):
        encoder = make_encoder(tmp_path / "encoder", "recurrent")
    task = TASKS[name]
    ending, row = FILES[type(task.kind)]
    data, rows = tmp_path / f"data.{ending}", [row(i) for i in range(20)]
    data.write_text("".join(x if isinstance(x, str) else f"{json.dumps(x)}\n" for x in rows))
    length = 3 if trained == "windows" else 12  # a window for each word
    files = {"model": str(encoder), "train": str(data), "validation": str(data)}
    options = FinetuningOptions(
        **(files | {"output": str(tmp_path / "run"), "task": name, "strategy": "one"}),
        **{"batch_size": 8, "log_every": 100, "evaluate_every": 20, "max_length": length},
        epochs={"conll2003_documents": 30, "embedding": 20}.get(name, 16),
        learning_rate=5e-2 if trained == "features_only" else 5e-3,
        histograms_every=25 if trained in ("bilstm", "recurrent") else None,
        **_OPTIONS.get(trained, {}),
    )

    # It overfits.
    result = run_finetuning(options)
    best = tmp_path / "run" / "best"
    tuned = load_answerer(best)
    perfect = 100 if isinstance(task.kind, Span) else 1
    score = result.evaluation.scores[task.kind.score_names(task, tuned.labels)[0]]
    assert score > 0.9 * perfect
    assert json.loads((best / "metrics.json").read_text()) == result.evaluation.scores

    # The directory round-trips through Hugging Face's names, without the task's own file.
    assert tuned.task == replace(task, max_length=length, kind=tuned.task.kind)
    tuned.save(tmp_path / "copy")
    (tmp_path / "copy" / "task.json").unlink()
    copy = load_answerer(tmp_path / "copy", tuned.task.settings())
    assert copy.labels == tuned.labels

    # The SavedModel of the copy answers as the evaluation did.
    examples = task.read(data, "train")
    # Of models of other kinds, tokens are asked, too: no other test exports these.
    asked = {"serving_default", task.kind.evaluated, *(["tokens"] if trained else [])}
    with exports_of(*asked):
        predictor = Predictor(copy.export("model", root=tmp_path / "served"))
    strings = {input: examples.columns[input] for input in tuned.inputs}
    served = answer(predictor.signature(task.kind.evaluated), strings, 7)
    for key, values in served.items():
        if values.dtype.kind == "f":
            # Rounding in a block and a head, in batches of other lengths.
            expected = result.evaluation.answered.answers[key]
            assert_equal_but_for_rounding(values, expected, 30, 32)
    assert read_settings(predictor.directory) == tuned.task.settings()
