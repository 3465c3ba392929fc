import functools
import json
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertMaskedLanguageModel, BertPreTrainer, BertTokenizer, save_model
from bert_tf.errors import InputError
from bert_tf.serving.predictor import Predictor, answer
from bert_tf.tasks.kinds import masked_language_model
from bert_tf.tasks.kinds.masked_language_model import _draw, guess_masked_words
from bert_tf.tasks.predictions import write_predictions
from bert_tf.tasks.remarks import remarks_on_scores
from bert_tf.tasks.reports.report import report
from bert_tf.tasks.signatures import DEFAULT
from bert_tf.tasks.task_table import find_task
from bert_tf.text.answerer import Answerer
from bert_tf.text.opening import load_answerer
from bert_tf.tokenization.windows import map_rows

WORDS = ["sea", "ship", "##s", "sail", "##ed", "cow", "barn", ","]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
PADDED = len(PIECES) + 3  # rows of the table
CONFIG = tiny_config(PADDED, max_position_embeddings=10, initializer_range=0.5)
# A block and the head, whose sums have up to 16 terms; of 8 numbers with mean 0 and variance 1 none
# is above the root of 7.
CLOSE = rounding(30, 16, size=7**0.5)
LONG = "ships sailed , cow barn sea " * 3
TEXTS = ["ships sailed", LONG, "cow , sea"]


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)


@pytest.fixture(scope="module")
def directory(made_once):
    model = BertPreTrainer(CONFIG, seed=1)
    return made_once("mlm", lambda path: save_model(model, path, BertTokenizer(PIECES)))


@pytest.fixture(scope="module")
def scorer(directory):
    return load_answerer(directory, {"task": "masked_words"})


@pytest.fixture(scope="module")
def signature(scorer):
    """The functions of the model by name, each traced once."""
    return functools.cache(scorer.module().signature)


def logs_at(scorer, row, positions):
    """Log-probabilities of all pieces [P, V] at positions of one row of tokens, without padding."""
    ids = np.array([row])
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": 0 * ids + 1}
    logits = scorer.model({**inputs, "mask_positions": np.array([positions])})
    return tf.nn.log_softmax(logits[0, :, : len(PIECES)]).numpy()


def log_probabilities(scorer, ids, place):
    """Those at a place where the row is masked."""
    row = [*ids[:place], PIECES.index("[MASK]"), *ids[place + 1 :]]
    return logs_at(scorer, row, [place])[0]


def test_each_piece_is_masked_in_turn(scorer, signature):
    found = answer(signature("pseudo_likelihood"), {"sentence": TEXTS}, 2)
    ids = [scorer.tokenizer.tokenize([text])[0].numpy() for text in TEXTS]
    assert found["pieces_count"].tolist() == [4, 24, 3]
    for text, row in ((0, [2, *ids[0], 3]), (2, [2, *ids[2], 3])):
        for place, piece in enumerate(ids[text]):
            logs = log_probabilities(scorer, row, place + 1)
            assert found["pieces_text"][text, place].decode() == PIECES[piece]
            assert found["pieces_guess"][text, place].decode() == PIECES[np.argmax(logs)]
            assert_close(found["pieces_log_probability"][text, place], logs[piece])
    # Windows of 8 pieces begin every 4: piece 10 is the seventh in one and the third in the next,
    # where its poorer side has more context.
    logs = log_probabilities(scorer, [2, *ids[1][8:16], 3], 1 + 10 - 8)
    assert_close(found["pieces_log_probability"][1, 10], logs[ids[1][10]])


def test_a_share_of_the_pieces_is_drawn_as_in_pre_training(scorer):
    texts = [" ".join(["sea", "barn", "cow"][i % 3] for i in range(n)) for n in range(1500, 1510)]
    pieces = scorer.tokenizer.tokenize(texts)
    drawn, corrupted = (x.numpy() for x in _draw(tf.constant(texts), pieces, scorer.tokenizer))
    ids = pieces.flat_values.numpy()
    assert len(drawn) / len(ids) == pytest.approx(0.15, abs=0.01)
    assert (np.delete(corrupted, drawn) == np.delete(ids, drawn)).all()
    masked = corrupted[drawn] == PIECES.index("[MASK]")
    kept = corrupted[drawn] == ids[drawn]
    assert masked.mean() == pytest.approx(0.8 + 0.1 / 13, abs=0.03)
    assert kept.mean() == pytest.approx(0.1 + 0.1 / 13, abs=0.03)
    # The draw is the text's own, whatever stands beside it.
    alone = _draw(tf.constant(texts[1:2]), pieces[1:2], scorer.tokenizer)[1].numpy()
    np.testing.assert_array_equal(alone, corrupted[1500:3001])


def test_drawn_pieces_are_predicted_at_once(scorer, signature):
    text = "cow sea , ships barn sea"  # one row; two of its pieces are masked, one replaced
    pieces = scorer.tokenizer.tokenize([text])
    found = answer(signature("pseudo_likelihood"), {"sentence": [text]}, 1)
    drawn, corrupted = _draw(tf.constant([text]), pieces, scorer.tokenizer)
    assert found["drawn_count"].tolist() == [len(drawn)]
    logs = logs_at(scorer, [2, *corrupted.numpy(), 3], drawn.numpy() + 1)
    ids = pieces.flat_values.numpy()[drawn]
    drawn_logs = logs[np.arange(len(ids)), ids]
    assert corrupted.numpy()[drawn.numpy()].tolist() == [4, 4, 11]
    assert_close(found["drawn_log_probability"], [drawn_logs.sum()])
    assert found["drawn_right"].tolist() == [(logs.argmax(-1) == ids).sum()]


def test_a_mask_far_into_a_long_text_is_guessed(scorer, signature):
    found = answer(signature(DEFAULT), {"text": [LONG + "[MASK]"]}, 1)
    ids = [*scorer.tokenizer.tokenize([LONG])[0].numpy(), 4]
    logs = log_probabilities(scorer, [2, *ids[20:], 3], 1 + 24 - 20)  # the last window
    assert found["masks_count"].tolist() == [1]
    assert_close(found["masks_probabilities"][0, 0], np.sort(np.exp(logs))[:-6:-1])


@pytest.mark.slow
def test_masks_of_a_row_are_read_together(monkeypatch):
    model = BertMaskedLanguageModel(replace(CONFIG, max_position_embeddings=40), seed=3)
    task = find_task("masked_words").with_settings({"max_length": 40})
    scorer = Answerer(task, model, BertTokenizer(PIECES))
    predict = scorer.module().signature(DEFAULT)
    masks = [0, 3, 4, 9, 10, 11, 12, 20, 21, 27, 28, 29]  # three times 5 at most, of 40 // 8
    words = ["[MASK]" if place in masks else ("sea", "cow")[place % 2] for place in range(30)]
    texts = ["no gap", " ".join(words), "", "the [MASK] , [MASK]", "[MASK]"]
    found = answer(predict, {"text": texts}, len(texts))
    assert found["masks_count"].tolist() == [0, 12, 0, 2, 1]
    for row, text in enumerate(texts):
        between = [part.numpy() for part in scorer.tokenizer.tokenize(text.split("[MASK]"))]
        ids = np.concatenate([[2], *([*part, 4] for part in between)])
        ids[-1] = 3
        for mask, place in enumerate(np.flatnonzero(ids == 4)):
            logs = log_probabilities(scorer, ids, place)
            assert_close(found["masks_probabilities"][row, mask], np.sort(np.exp(logs))[:-6:-1])
    nothing = answer(predict, {"text": texts[:1]}, 1)
    assert nothing["masks_words"].shape[:2] == (1, 0)

    rows = []

    def counted(function, tensors, length):
        rows.append(len(tensors["row"]))
        return map_rows(function, tensors, length)

    monkeypatch.setattr("bert_tf.tasks.kinds.masked_language_model.map_rows", counted)
    guess_masked_words(tf.constant(texts), 5, scorer)
    assert rows == [3 + 1 + 1]


def test_scores_and_predictions_by_hand(tmp_path, answered):
    task = find_task("masked_words")
    answers = {
        "pieces_count": np.array([2, 1]),
        "pieces_text": np.array([[b"sea", b"ship"], [b"cow", b""]], object),
        "pieces_guess": np.array([[b"sea", b"cow"], [b"ship", b""]], object),
        "pieces_log_probability": np.array([[-0.5, -2.0], [-3.5, 9.0]]),  # padding is no piece
        "drawn_count": np.array([1, 1]),
        "drawn_right": np.array([1, 0]),
        "drawn_log_probability": np.array([-1.0, -2.0]),
    }
    given = answered(task, {"sentence": ["sea ship", "cow"]}, answers)
    assert task.kind.scores(given) == {
        "accuracy": pytest.approx(1 / 3),
        "pseudo_perplexity": pytest.approx(np.exp(2)),
        "masked_lm_accuracy": 0.5,
        "masked_lm_perplexity": pytest.approx(np.exp(1.5)),
    }
    (remark,) = remarks_on_scores(given, {})
    assert "masked_lm_perplexity, that of the paper's table 6, 15% at once" in remark
    write_predictions(task.kind, tmp_path, given)
    assert (tmp_path / "predictions.tsv").read_text().splitlines() == [
        "text\tpieces\tright\tpseudo_log_likelihood",
        "sea ship\t2\t1\t-2.500000",
        "cow\t1\t0\t-3.500000",
    ]
    (errors,) = report(task.kind, given)
    assert errors.rows == [
        ["d.tsv, line 3", "cow", "cow", "ship", -3.5],
        ["d.tsv, line 2", "sea ship", "ship", "cow", -2.0],
    ]


def test_blank_texts_are_not_scored(tmp_path):
    task = find_task("masked_words")
    (tmp_path / "text.txt").write_text("ships\n\ncow\n")
    assert task.read(tmp_path / "text.txt", "validation").columns == {"sentence": ["ships", "cow"]}
    (tmp_path / "blank.csv").write_text('text\n" "\n""\n')
    with pytest.raises(InputError, match=r"blank\.csv: every text is blank: give texts with words"):
        task.read(tmp_path / "blank.csv", "validation")


@pytest.mark.slow
def test_the_export_answers_as_the_directory_does(signature, directory, tmp_path, call, exports_of):
    task = {"task": "masked_words"}
    with exports_of("serving_default", "pseudo_likelihood"):
        call("export --name words", model=directory, output=tmp_path / "models", **task)
    out, _ = call("predict --text", "the [MASK] sea", model=tmp_path / "models" / "words")
    assert len(json.loads(out)["masks"][0]["words"]) == 5
    predictor = Predictor(tmp_path / "models" / "words")
    found = answer(signature("pseudo_likelihood"), {"sentence": TEXTS}, 3)
    served = answer(predictor.signature("pseudo_likelihood"), {"sentence": TEXTS}, 3)
    assert_close(served["pieces_log_probability"], found["pieces_log_probability"])


def test_more_guesses_are_a_signature(scorer, monkeypatch):
    monkeypatch.setattr(masked_language_model, "_MORE_GUESSES", 7)
    signature = scorer.task.kind.signatures(scorer.task)["top_7"]
    answer = signature.respond({"text": tf.constant(["[MASK] sea"])}, scorer)
    assert answer["masks_words"].shape[-1] == 7
