import json
from dataclasses import replace
from unittest.mock import MagicMock

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertSpanClassifier, BertTokenizer
from bert_tf.errors import InputError
from bert_tf.pipelines.examples.table import Examples
from bert_tf.tasks.kinds import span as span_kind
from bert_tf.tasks.kinds.kind import Answered
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.predictions import write_predictions
from bert_tf.tasks.scoring.squad_scores import squad_2_scores
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer
from bert_tf.tokenization.windows import QuestionPacker, token_targets

WORDS = ["sea", "ship", "wave", "farm", "cow", "barn"]
CONTEXT = "cow 😀 sea ship (wave, farm) barn sea sea ship cow barn farm"


@pytest.fixture(scope="module")
def tokenizer():
    return BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *"(,)"])


@pytest.fixture(scope="module")
def tuned(tokenizer):
    config = tiny_config(tokenizer.vocabulary_size, "1x16x2")
    model = BertSpanClassifier(config, seed=3)
    task = replace(TASKS["squad2"], kind=Span(unanswerable=True, doc_stride=3), max_length=10)
    return Answerer(task, model, tokenizer)


def write_questions(path, questions):
    rows = []
    for i, (question, text) in enumerate(questions):
        answers = [{"text": text, "answer_start": CONTEXT.index(text)}] if text else []
        rows.append({"id": f"q{i}", "question": question, "context": CONTEXT, "answers": answers})
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@for_each(
    "answer tokens",
    ("cow", (0, 0)),
    ("wave", (5, 5)),
    ("(wave, farm)", (4, 8)),
    ("ship (wave, farm) barn sea", (3, 10)),  # longer than a window: nowhere
    ("farm)", (7, 8)),
    ("", None),
)
def test_windows_to_train_on_point_at_the_answer_or_at_cls(tuned, answer, tokens, tmp_path):
    path = write_questions(tmp_path / "own.jsonl", [("sea ship", answer)])
    examples = tuned.task.read(path, "train")
    rows, targets = tuned.task.kind.training_rows(tuned.task, examples, [], tuned.tokenizer)
    assert rows["window"].tolist() == list(range(len(targets)))
    length, stride, before, pieces = 5, 3, 4, len(tuned.tokenizer.tokenize(CONTEXT))
    for number, target in enumerate(targets.tolist()):
        first = number * stride
        last = min(first + length, pieces) - 1
        whole = tokens and first <= tokens[0] and tokens[1] <= last
        assert target == ([token - first + before for token in tokens] if whole else [0, 0])
    # What `model_inputs` makes of a row is that window.
    strings = {name: tf.constant(values) for name, values in rows.items()}
    inputs = tuned.task.kind.model_inputs(strings, tuned.tokenizer, 10)
    pack = QuestionPacker(tuned.tokenizer, 10, 3)
    windows = pack(tf.constant(["sea ship"]), tf.constant([CONTEXT]))
    for name, values in windows.inputs.items():
        np.testing.assert_array_equal(inputs[name], values)


def test_an_answer_within_a_character_takes_all_its_pieces():
    """한 is three pieces; the answer is it, in the middle of a word."""
    jamo = [chr(c) for c in range(0x1100, 0x1200)]
    tokenizer = BertTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *jamo, *(f"##{c}" for c in jamo)]
    )
    windows = QuestionPacker(tokenizer, 16)(tf.constant([""]), tf.constant(["대한국"]))
    assert token_targets(windows, tf.constant([[3, 6]], tf.int64)).numpy().tolist() == [[4, 6]]


def test_answers_that_are_not_in_their_contexts_are_not_trained_on(tuned, tmp_path):
    path = tmp_path / "own.jsonl"
    row = {"question": "sea", "context": "sea ship", "answers": []}
    lost = {**row, "answers": [{"text": "cow", "answer_start": 0}]}
    path.write_text(f"{json.dumps(row)}\n{json.dumps(lost)}\n")
    examples = tuned.task.read(path, "train")
    rows, targets = tuned.task.kind.training_rows(tuned.task, examples, [], tuned.tokenizer)
    assert len(targets) == 1 and rows["question"] == ["sea"]
    with pytest.raises(InputError, match="no answer is in its context; check answer_start"):
        tuned.task.kind.training_rows(tuned.task, examples.take([1]), [], tuned.tokenizer)


def judged(gold, best, odds, threshold=0.0):
    """Questions with their right answers, and what a model with this threshold answers."""
    kind = Span(unanswerable=True, null_score_diff_threshold=threshold)
    columns = {"id": [*map(str, range(len(gold)))], "answers": gold}
    given = [text if o <= threshold else "" for text, o in zip(best, odds, strict=True)]
    answers = {
        "answer": np.array([text.encode() for text in given], object),
        "null_odds": np.array(odds, np.float32),
        "answers_text": np.array([[text.encode()] for text in best], object),
        "answers_count": np.ones(len(best), int),
    }
    for name in ("probability", "start_logit", "end_logit"):
        answers[f"answers_{name}"] = np.ones([len(best), 1])
    examples = Examples("q.json", [*range(len(gold))], columns)
    return kind, Answered(TASKS["squad2"], examples, answers)


def test_answers_are_found_by_the_kinds_own_settings(monkeypatch):
    found, packer = MagicMock(return_value={}), MagicMock()
    monkeypatch.setattr(span_kind, "best_answers", found)
    monkeypatch.setattr(span_kind, "map_rows", MagicMock())
    monkeypatch.setattr(span_kind, "QuestionPacker", packer)
    settings = {"doc_stride": 9, "max_query_length": 7, "max_answer_length": 5}
    kind = Span(unanswerable=True, null_score_diff_threshold=0.5, **settings)
    answerer = MagicMock(max_length=40)
    kind.respond(MagicMock(), answerer)
    packer.assert_called_once_with(answerer.tokenizer, 40, 9, 7)
    assert found.call_args.kwargs == {"longest": 5, "unanswerable": True, "threshold": 0.5}


@for_each(
    "gold odds expected",
    ([[], [], [], ["sea"]], [-3.0, -2.0, -1.0, 5.0], -4.0),  # to answer nothing is best: 75
    ([[], ["sea"]], [1e30, 1e30], 0.0),  # no candidates: as it was
    ([["cow"], ["sea"]], [-4.0, 1e30], -4.0),  # 1e30 is no odds to be half-way to
    ([["cow"], [], []], [-4.0, -1.0, 1e30], -2.5),
    ([["cow"], ["cow"], []], [-4.0, -4.0, -1.0], -2.5),  # of equal odds all are answered
)
def test_the_tuned_threshold_lies_between_odds_or_below_all(gold, odds, expected):
    kind, questions = judged(gold, ["cow" if o < 1e30 else "" for o in odds], odds)
    best = kind.scores(questions)["best_f1"]
    threshold = kind.tuned(questions).null_score_diff_threshold
    assert threshold == expected
    kind, questions = judged(gold, ["cow" if o < 1e30 else "" for o in odds], odds, threshold)
    assert kind.scores(questions)["f1"] == best
    assert kind.tuned(questions) == kind
    assert Span().tuned(questions) == Span()  # a model of SQuAD 1.1 has none


def test_metrics_are_the_official_scores_of_predictions_json(tmp_path):
    """A right answer without words is right where nothing is answered, whatever the odds."""
    gold, odds = [["the"], ["cow"], []], [5.0, -5.0, -5.0]
    kind, questions = judged(gold, ["sea", "cow", "cow"], odds)
    write_predictions(kind, tmp_path, questions)
    written = json.loads((tmp_path / "predictions.json").read_text())
    assert written == {"0": "", "1": "cow", "2": "cow"}
    official = squad_2_scores(dict(zip("012", gold, strict=True)), written)
    assert official["f1"] == pytest.approx(200 / 3)
    assert official.items() <= kind.scores(questions).items()


def test_a_context_of_any_length(tuned):
    contexts = tf.constant([CONTEXT * 60, "", "cow"])
    function = tuned.function()
    found = function(question=tf.constant(["sea", "", "x"]), context=contexts)
    assert len(tuned.tokenizer.tokenize(CONTEXT * 60)) > 64 * 10  # many chunks of windows
    alone = function(question=tf.constant(["sea"]), context=contexts[:1])
    assert found["answers_count"][0] == alone["answers_count"][0] == 21
    one, other = (x["null_odds"][0] for x in (found, alone))
    np.testing.assert_allclose(one, other, rtol=0, atol=rounding(30, 32))


@pytest.mark.slow
def test_commands_write_the_official_files(tuned, tmp_path, call, exports_of):
    """Those of a directory and of its export are equal, also without answers in the data."""
    tuned.save(tmp_path / "model")
    questions = [("sea", "sea"), ("cow", ""), ("", "barn")]
    data = write_questions(tmp_path / "dev.jsonl", questions)
    call("evaluate", model=tmp_path / "model", data=data, output=tmp_path / "out")
    with exports_of("serving_default"):
        call("export --name squad", model=tmp_path / "model", output=tmp_path)
    files = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("out/*.json")}
    predictions, n_bests = files["predictions"], files["nbest_predictions"]
    assert files["metrics"]["total"] == files["metrics"]["examples"] == 3
    for id_, n_best in n_bests.items():
        assert sum(row["probability"] for row in n_best) == pytest.approx(1, abs=1e-5)
        best = next(row["text"] for row in n_best if row["text"])
        assert predictions[id_] == ("" if files["null_odds"][id_] > 0 else best)
    numbered = enumerate(question for question, _ in questions)
    rows = [{"id": f"q{i}", "question": q, "context": CONTEXT} for i, q in numbered]
    (tmp_path / "new.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    for model in (tmp_path / "model", tmp_path / "squad"):
        files_of = [tmp_path / f"{model.name}{ending}" for ending in (".jsonl", " files")]
        written = dict(zip(("output", "submission"), files_of, strict=True))
        call("predict", model=model, input=tmp_path / "new.jsonl", **written)
        for path in written["submission"].iterdir():
            assert list(json.loads(path.read_text())) == [*files[path.stem]] == ["q0", "q1", "q2"]
        answers = [json.loads(line) for line in written["output"].open(encoding="utf-8")]
        assert {answer["id"]: answer["answer"] for answer in answers} == predictions
        for answer, n_best in zip(answers, n_bests.values(), strict=True):
            assert CONTEXT[answer["start"] : answer["end"]] == answer["answer"]
            assert [row["text"] for row in answer["answers"]] == [row["text"] for row in n_best]
        error = call.refused("predict --text sea", model=model)
        assert "takes context and question: give the context with --pair" in error
        out, _ = call("predict --text sea", model=model, pair=CONTEXT)
        assert json.loads(out)["answer"] == predictions["q0"]
