"""A task of every kind, on 20 rows: learns, is evaluated, exported and loaded again."""

import json
from dataclasses import replace

import pytest
from rounding import assert_equal_but_for_rounding
from tiny import tiny_config

from bert_tf import BertTokenizer, save_model
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.models.encoder import encoder_for
from bert_tf.models.opening import load_answerer
from bert_tf.serving.predictor import Predictor, answer
from bert_tf.tasks.kinds.choice import Choice
from bert_tf.tasks.kinds.multi_label import MultiLabel
from bert_tf.tasks.kinds.sentence_embedding import SentenceEmbedding
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.kinds.tagging import Tagging, Tags
from bert_tf.tasks.of_model import read_settings
from bert_tf.tasks.task_table import TASKS

WORDS = ["sea", "ship", "wave", "farm", "cow", "barn"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
ROWS = 20


def make_encoder(folder, direction="both"):
    config = tiny_config(
        len(PIECES), "1x16x2", initializer_range=0.2, attention_direction=direction, dropout=0.0
    )
    save_model(encoder_for(config, 1, None)[0], folder, tokenizer=BertTokenizer(PIECES))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder"))


def write_table(path, task) -> None:
    """A table of texts that tell their label."""
    columns = task.columns()
    names = list(columns.values()) if task.header else [str(i) for i in range(4)]
    labels = task.labels or ("0.5", "1.25", "4.75")
    lines = ["\t".join(names)] if task.header else []
    for i in range(ROWS):
        number = i % len(labels)
        cells = dict.fromkeys(names, "x")
        cells[columns["text"]] = f"{WORDS[number]} {WORDS[3 + i % 3]}"
        cells[columns["label"]] = labels[number]
        lines.append("\t".join(cells.values()))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_label_sets(path, task) -> None:
    """A table of texts whose words tell their labels: none, one or two."""
    lines = ["text\tlabel"]
    for i in range(ROWS):
        words = [word for number, word in enumerate(WORDS[:2]) if (i >> number) % 2]
        lines.append(f"{' '.join([WORDS[3 + i % 3], *words])}\t{', '.join(words)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_columns(path, task) -> None:
    """A column file in which a word tells its entity."""
    types = sorted({label[2:] for label in task.labels if label != "O"}) or ["PER", "LOC"]
    lines = []
    for i in range(ROWS):
        lines += ["-DOCSTART- -X- O O", ""] if i % 4 != 3 else []
        type_ = types[i % 2]
        words = [(WORDS[4], "O")] * (i % 3) + [(WORDS[i % 2], f"I-{type_}")] * (1 + i % 2)
        lines += [f"{word} NN {label}" for word, label in [*words, (WORDS[5], "O")]] + [""]
    path.write_text("\n".join(lines), encoding="utf-8")


def write_pairs(path, task) -> None:
    """A table of texts that share their words."""
    lines = ["text\ttext_pair"]
    pairs = [(a, b) for a in WORDS for b in WORDS if a < b]
    for i in range(ROWS):
        first, second = pairs[i % len(pairs)]
        more = WORDS[i // len(pairs)]
        lines.append(f"{first} {second} {more}\t{more} {first} {second}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_tags(path, task) -> None:
    """A column file in which a word tells its tag."""
    lines = []
    for i in range(ROWS):
        words = [WORDS[(i + k) % 6] for k in range(1 + i % 3)]
        lines += [f"{word} {('NN', 'VB', ',')[WORDS.index(word) % 3]}" for word in words] + [""]
    path.write_text("\n".join(lines), encoding="utf-8")


def write_choices(path, task) -> None:
    """A table in which the right choice names the sea."""
    context, choice = task.text, task.pair.removesuffix("*")
    names = [context, "sent2", *(f"{choice}{i}" for i in range(4)), "label"]
    lines = [",".join(names)]
    for i in range(ROWS):
        right = i % 4
        choices = ["sea" if place == right else WORDS[1 + (i + place) % 5] for place in range(4)]
        lines.append(",".join([WORDS[i % 6], "ship", *choices, str(right)]))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_questions(path, task) -> None:
    """SQuAD's format; the answer is always "barn", if there is one."""
    data = []
    for i in range(ROWS):
        words = [WORDS[(i + k) % 5] for k in range(6)]
        answers = []
        if i % 4 or not task.kind.unanswerable:
            words[i % 6] = "barn"
            answers = [{"text": "barn", "answer_start": " ".join(words).index("barn")}]
        qas = [{"id": str(i), "question": WORDS[i % 5], "answers": answers}]
        data.append({"paragraphs": [{"context": " ".join(words), "qas": qas}]})
    path.write_text(json.dumps({"data": data}), encoding="utf-8")


# Kind -> name of its data, how to write it.
TABLE = ("data.tsv", write_table)
FILES = {
    Choice: ("data.csv", write_choices),
    MultiLabel: ("data.tsv", write_label_sets),
    SentenceEmbedding: ("data.tsv", write_pairs),
    Tagging: ("data.conll", write_columns),
    Tags: ("data.conll", write_tags),
    Span: ("data.json", write_questions),
}


# How a run learns and what an export computes is up to the kind: a task of each is trained here,
# and resumed in tests/frozen. So is each kind of model at least once: one that reads from one side
# or from both, a BiLSTM on top, LSTM language models, features of an encoder, as ELMo's, too; and
# documents and windows over texts.
_CASES = [
    ("cola", ""),
    ("regression", "left_to_right"),
    ("choice", "bilstm"),
    ("choice", "features_only"),
    ("squad2", "recurrent"),
    ("tagging", "elmo"),
    ("conll2003_documents", ""),
    ("tags", "left_to_right+right_to_left"),
    ("multi_label", "windows"),
    ("embedding", ""),
]
_OPTIONS = {
    "features_only": {"features_only": "last"},
    "elmo": {"features_only": "mix"},
    "bilstm": {"bilstm": True},
    "windows": {"long_texts": "windows"},
}
assert {type(TASKS[name].kind) for name, _ in _CASES} == {
    type(task.kind) for task in TASKS.values() if task.kind.is_trained
}


@pytest.mark.slow  # tests/runs/test_commands.py goes this way for one task each time
@pytest.mark.parametrize(("name", "trained"), _CASES)
def test_a_task_learns_is_evaluated_exported_and_loaded(
    name, trained, encoder, tmp_path, monkeypatch, exports_of
):
    monkeypatch.setattr("bert_tf.paper.feature_encoder.LSTM_UNITS", 32)  # 384 take long to write
    if "left_to_right" in trained:
        encoder = make_encoder(tmp_path / "encoder", trained)
    elif trained in ("elmo", "recurrent"):
        encoder = make_encoder(tmp_path / "encoder", "recurrent")
    task = TASKS[name]
    file, write = FILES.get(type(task.kind), TABLE)
    data = tmp_path / file
    write(data, task)
    length = 3 if trained == "windows" else 12  # a window for each word
    options = FinetuningOptions(
        model=str(encoder),
        task=name,
        train=str(data),
        validation=str(data),
        output=str(tmp_path / "run"),
        epochs={"conll2003_documents": 30, "embedding": 20}.get(name, 16),
        batch_size=8,
        max_length=length,
        learning_rate=5e-2 if trained == "features_only" else 5e-3,
        log_every=100,
        evaluate_every=20,
        histograms_every=25 if trained in ("bilstm", "recurrent") else None,
        strategy="one",
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
    for key, values in result.evaluation.answered.answers.items():
        if values.dtype.kind == "f":
            # Rounding in a block and a head, in batches of other lengths.
            assert_equal_but_for_rounding(served[key], values, 30, 32)
    assert read_settings(predictor.directory) == tuned.task.settings()
