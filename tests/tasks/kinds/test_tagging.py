import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused

from bert_tf import BertTokenizer
from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.pipelines.examples.table import Examples
from bert_tf.pipelines.examples.tagged_words import chunks
from bert_tf.serving.predictor import rows
from bert_tf.tasks.ensembles import joint_kind
from bert_tf.tasks.kinds.tagging import Tagging
from bert_tf.tasks.predictions import write_predictions
from bert_tf.tasks.reports.report import report
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer
from bert_tf.tokenization.words import words_between_spaces

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "E-LOC", "S-PER"]
# The piece w3 gets the label LABELS[3], whatever stands around it.
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(7)), "##x", "."]
KIND, TASK = Tagging(), TASKS["tagging"]


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(PIECES)


def model(inputs, training):
    """Stands in for a model: the label is a function of the piece alone."""
    return 9.0 * tf.one_hot(inputs["token_ids"] - PIECES.index("w0"), len(LABELS))


def respond(tokenizer, max_length=8, kind=KIND, labels=LABELS, **strings):
    strings = {name: tf.constant(values) for name, values in strings.items()}
    task = TASK.with_settings({"max_length": max_length})
    found = kind.respond(strings, Answerer(task, model, tokenizer, labels))
    return {name: value.numpy() for name, value in found.items()}


def examples(words, labels):
    return Examples("data.conll", list(range(len(words))), {"words": words, "label": labels})


def test_kinds_in_ensembles_answer_with_all_probabilities(tokenizer):
    joint = respond(tokenizer, kind=joint_kind(KIND, [KIND]), words=["w1 w5"])
    found = joint["words_probabilities"]
    assert found.shape == (1, 2, len(LABELS)) and found.argmax(-1).tolist() == [[1, 5]]
    assert "words_probabilities" not in respond(tokenizer, words=["w1 w5"])


def test_the_loss_is_the_mean_over_words(tokenizer, answered):
    """Sentences of other lengths; of six words one is wrong, by a logit of 9."""
    columns = {"words": ["w0 w1\nw3", "w1 w2 w0"], "label": ["O B-PER\nB-LOC", "B-PER I-PER B-LOC"]}
    found = respond(tokenizer, kind=joint_kind(KIND, [KIND]), words=columns["words"])
    loss = KIND.mean_loss(answered(TASK, columns, found, LABELS), cross_entropy)
    right = np.log(1 + 6 * np.exp(-9))
    assert loss == pytest.approx(right + 9 / 6, rel=1e-6)  # float32


@for_each("max_length", 3, 4, 7, 16)
def test_every_word_comes_back_once_whatever_the_length(max_length, tokenizer):
    draw = np.random.RandomState(max_length)
    sentences = []
    for _ in range(20):
        numbers = draw.randint(0, 7, draw.randint(1, 30))
        sentences.append([f"w{n}{'x' * draw.randint(0, 3)}" for n in numbers])
    found = respond(tokenizer, max_length, words=[" ".join(s) for s in sentences])
    for row, words in zip(rows(found), sentences, strict=True):
        expected = [LABELS[int(word[1])] for word in words]
        assert [w["text"] for w in row["words"]] == words
        assert [w["label"] for w in row["words"]] == expected
        # Entities are those of conlleval's rules.
        texts = [" ".join(words[start:end]) for _, start, end in chunks(expected)]
        assert [e["text"] for e in row["entities"]] == texts
        assert [e["type"] for e in row["entities"]] == [type_ for type_, *_ in chunks(expected)]


def test_entities_of_raw_text_have_exact_spans(tokenizer, tmp_path, answered):
    texts = ["é 😀 w3 w4, w1w0", "w3", "w4."]
    found = respond(tokenizer, text=texts)
    answers = list(rows(found))
    (place,), (second,), (third,) = (row["entities"] for row in answers)
    assert (place["text"], place["type"]) == ("w3 w4", "LOC")
    assert texts[0][place["start"] : place["end"]] == "w3 w4"
    assert texts[0].encode()[place["start_byte"] : place["end_byte"]] == b"w3 w4"
    assert place["score"] == pytest.approx(np.exp(9) / (np.exp(9) + 6), abs=1e-6)
    assert (second["text"], third["text"]) == ("w3", "w4")  # no entity crosses texts
    json.dumps(answers)
    write_predictions(KIND, tmp_path, answered(TASK, {"text": texts}, found, LABELS))
    written = (tmp_path / "predictions.conll").read_text()
    assert written.endswith("\n\nw3 B-LOC\n\nw4 I-LOC\n. O\n\n")


def test_the_loss_is_over_first_pieces_alone(tokenizer):
    given = examples(["w3x w0 w0xx w1 w1 w1 w1", "w2"], ["B-PER O O B-LOC O O O", "I-PER"])
    targets = KIND.targets(given, LABELS)
    strings = {"words": tf.constant(given.columns["words"])}
    inputs, labels, weights = KIND.batch(strings, [tf.constant(targets)], tokenizer, 6)
    assert inputs["token_ids"].shape == labels.shape == weights.shape
    assert float(tf.reduce_sum(weights)) == 8
    at = weights.numpy() == 1
    pairs = sorted(zip(inputs["token_ids"].numpy()[at], labels.numpy()[at], strict=True))
    words = " ".join(given.columns["words"]).replace("x", "").split()
    expected = zip(words, (t for row in targets for t in row if t >= 0), strict=True)
    assert pairs == sorted((PIECES.index(word), label) for word, label in expected)


def test_labels_of_a_new_model_and_labels_unseen_in_training():
    given = examples(["a b c"], ["B-MISC O B-LOC"])
    names = KIND.label_names(TASK, given)
    assert names == ["O", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
    assert KIND.targets(given, names).tolist() == [[3, 0, 1]]
    assert KIND.targets(given, ["I-LOC", "O", "I-MISC"]).tolist() == [[2, 1, 0]]  # an IOB1 model
    refused("the word 'a' has the label 'B-MISC'", KIND.targets, given, ["O", "B-LOC", "I-LOC"])
    refused("every label is O", KIND.label_names, TASK, examples(["a"], ["O"]))


def test_scores_and_files_of_documents(tmp_path, answered):
    columns = {"words": ["a b\nc", "d"], "label": ["B-LOC O\nI-LOC", "O"]}
    labels = np.array([[b"B-LOC", b"O", b"B-LOC"], [b"B-PER", b"", b""]], object)
    answers = {"words_label": labels, "words_score": np.ones(labels.shape)}
    given = answered(TASK, columns, answers, LABELS)
    scores = KIND.scores(given)
    assert scores["f1"] == pytest.approx(0.8) and scores["accuracy"] == 0.5
    assert scores["f1_LOC"] == 1.0 and scores["f1_PER"] == 0.0
    write_predictions(KIND, tmp_path, given)
    written = (tmp_path / "predictions.conll").read_text()
    assert written == "a B-LOC B-LOC\nb O O\n\nc I-LOC B-LOC\n\nd O B-PER\n\n"
    assert "found: 3 phrases; correct: 2." in (tmp_path / "conlleval.txt").read_text()


@for_each("labels", ["I-LOC", "I-LOC", "B-LOC", "O"], ["B-LOC", "E-LOC", "S-LOC", "O"])
def test_right_labels_of_another_scheme_are_right(labels, tmp_path, answered):
    """Right labels are read as IOB2; a model may know IOB1 or IOBES."""
    columns = {"words": ["a b c d"], "label": ["B-LOC I-LOC B-LOC O"]}
    predicted = np.array([[label.encode() for label in labels]], object)
    answers = {"words_label": predicted, "words_score": np.ones([1, 4])}
    given = answered(TASK, columns, answers, LABELS)
    scores = KIND.scores(given)
    assert scores["f1"] == scores["accuracy"] == 1
    write_predictions(KIND, tmp_path, given)
    written = (tmp_path / "predictions.conll").read_text()
    assert written == "a B-LOC B-LOC\nb I-LOC I-LOC\nc B-LOC B-LOC\nd O O\n\n"
    # Without labels to compare with, they are written as the model gives them.
    given.examples.columns.pop("label")
    write_predictions(KIND, tmp_path, given)
    assert f"a {labels[0]}\nb {labels[1]}\n" in (tmp_path / "predictions.conll").read_text()


def test_words_that_are_read_are_the_words_that_are_tagged(tokenizer, tmp_path):
    """No word of a file holds what ends a word: its labels would move on to other words."""
    words = [chr(c) for c in range(256) if chr(c).encode() not in b" \t\n\r\v\f"]
    words += [f"w{c}" for c in words] + ["a\u2028b", "\u3000", "-DOCSTART"]
    path = tmp_path / "all.conll"
    path.write_text("".join(f"{word} O\n" for word in words), encoding="utf-8", newline="")
    (text,) = TASK.read(path, "train").columns["words"]
    assert words_between_spaces(tf.constant([text]), tokenizer).starts.shape[0] == len(words)


def test_a_file_to_predict_is_not_taken_for_columns_without_a_reason(tmp_path):
    (tmp_path / "raw.txt").write_text("Anna lives in Paris.\n")
    with pytest.raises(InputError, match=r"raw\.txt: unknown format: give --format lines for a"):
        TASK.read(tmp_path / "raw.txt", "test", labelled=False)
    refused(r"none\.txt: cannot be read", TASK.read, tmp_path / "none.txt", "test", labelled=False)
    lines = replace(TASK, format="lines").read(tmp_path / "raw.txt", "test", labelled=False)
    assert lines.columns == {"text": ["Anna lives in Paris."]}
    (tmp_path / "a.tsv").write_text("text\nAnna runs.\n")
    found = TASK.read(tmp_path / "a.tsv", "test", labelled=False).columns
    assert found == {"text": ["Anna runs."]}
    (tmp_path / "a.jsonl").write_text('{"text": ["Anna", "runs"]}')
    found = TASK.read(tmp_path / "a.jsonl", "test", labelled=False).columns
    assert found == {"words": ["Anna runs"]}
    # Published files are columns, whatever their name; so is what has labels.
    (tmp_path / "test.txt").write_text("Anna NNP I-NP B-PER\n")
    columns = TASKS["conll2003"].read(tmp_path, "test", labelled=False)
    assert columns.columns == {"words": ["Anna"]}
    assert TASK.read(tmp_path / "test.txt", "train").columns["label"] == ["B-PER"]


def test_tags_are_read_answered_scored_reported_and_written(tokenizer, tmp_path, answered):
    task, labels = TASKS["tags"], [",", "NN", "VB"]
    kind = task.kind
    (tmp_path / "d.conll").write_text("w1 NN\nw2 NN\nw0 ,\n\nw2 VB\n")
    examples = task.read(tmp_path / "d.conll", "train")
    assert examples.columns == {"words": ["w1 w2 w0", "w2"], "label": ["NN NN ,", "VB"]}
    assert kind.label_names(task, examples) == labels
    assert kind.targets(examples, labels).tolist() == [[1, 1, 0], [2, -1, -1]]
    words = examples.columns["words"]
    answers = respond(tokenizer, kind=kind, labels=labels, words=words)
    first, second = rows(answers)
    assert [word["label"] for word in first["words"]] == ["NN", "VB", ","]
    assert (second["words"][0]["text"], second["words"][0]["end"]) == ("w2", 2)
    assert "entities" not in first
    given = answered(task, examples.columns, answers, labels)
    scores = kind.scores(given)
    assert list(scores) == kind.score_names(task, labels)
    assert list(scores.values()) == pytest.approx([0.75, 7 / 9, 1, 2 / 3, 2 / 3])
    classes, table, *_, errors = report(kind, given)
    assert classes.rows[1] == ["NN", 1, 0.5, pytest.approx(2 / 3), 2, 1]
    assert table.rows[1] == ["NN", 0, 1, 1]
    assert [row[1] for row in errors.rows] == ["w1 [w2] w0"]
    write_predictions(kind, tmp_path, given)
    written = (tmp_path / "predictions.conll").read_text()
    assert written == "w1 NN NN\nw2 NN VB\nw0 , ,\n\nw2 VB VB\n\n"
    assert not (tmp_path / "conlleval.txt").exists()


def test_mistakes_in_tags_are_named(tmp_path):
    tags = TASKS["tags"]
    (tmp_path / "d.conll").write_text("cow NN\nruns NN\n")
    refused("label is NN", tags.kind.label_names, tags, tags.read(tmp_path / "d.conll", "train"))
    refused(r"'NN' is neither O nor .* give --task tags", TASK.read, tmp_path / "d.conll", "train")
    (tmp_path / "d.jsonl").write_text('{"words": ["cow"], "label": ["N N"]}')
    refused("label 'N N' is empty or holds white space", tags.read, tmp_path / "d.jsonl", "train")
