import functools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, slow
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rounding import rounding
from tiny import tiny_config

from bert_tf import BertConfig, BertEncoder, BertPreTrainer, BertTokenizer, load_model, save_model
from bert_tf.errors import InputError
from bert_tf.models.loading import class_of_kind
from bert_tf.networks.tensorflow.inference import CopiedWeights
from bert_tf.networks.tensorflow.int8 import OP, ProductPlan, Range
from bert_tf.tasks.encoder_signatures import ENCODER_SIGNATURES
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer
from bert_tf.tokenization import Packer

WORDS = ["sea", "##s", "ship", "e", "##e", "北", "é", ".", "-"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
CONFIG = tiny_config(len(PIECES), "2x8x2", max_position_embeddings=12, initializer_range=1.0)
LENGTH = 9
# Two blocks with sums of up to 16 terms; weights as large as these make scores of up to 40.
CLOSE = rounding(40, 16, size=40)

BLANK = [b"", b" ", b"\t\n\r\xc2\xa0\xe3\x80\x80", b"\0"]
INVALID = [b"\xff", b"\xc3", b"sea \xe2\x82", b"\xed\xa0\x80"]
MARKS = [b"sea\0ship", "😀 sea".encode(), b"\xef\xbb\xbfsea", "e\u0301 \u200d \u202e北".encode()]
PIECES_AS_TEXT = [b"[MASK]", b"[MASK][MASK]sea[MASK", b"sea.ship-e", b"[CLS] [SEP]"]
HOSTILE = [*BLANK, *INVALID, *MARKS, *PIECES_AS_TEXT, b"ships " * 40, b"x" * 5000]
ANYTHING = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=20).map(lambda text: text.encode("utf-8", "replace")),
    st.lists(st.sampled_from(HOSTILE), max_size=4).map(b" ".join),
)


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=CLOSE)


def made(name: str, config: BertConfig, pieces: list[str]) -> Answerer:
    task = TASKS[name].with_settings({"max_length": LENGTH, "doc_stride": 2})
    names = {"classification": ["no", "né"], "tagging": ["O", "B-PER", "I-PER"]}
    labels = names.get(name, task.labels)
    model = class_of_kind(task.kind)(config, seed=1, **task.kind.head(labels))
    return Answerer(task, model, BertTokenizer(pieces), labels)


@pytest.fixture(scope="module")
def tuned() -> Callable[[str], Answerer]:
    return functools.cache(lambda name: made(name, CONFIG, PIECES))


def memory(key: str) -> float:
    """A value of this process's memory in MB, such as VmHWM, its peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


@pytest.mark.slow
@for_each(
    "name inputs expected",
    # 209,715 pieces, 7 of them in a row of the model; 74,898 rows of 2,000 words, 600 MB.
    ("classification", {"text": b"ship " * 209_715}, {"truncated": 209_708}),
    ("tagging", {"text": b"ship " * 209_715}, {"words_count": 209_715, "truncated": 0}),
    ("masked_words", {"text": b"[MASK] " * 74_898}, {"masks_count": 74_898}),
    # A window every two pieces: 10,000.
    ("squad2", {"question": b"sea", "context": b"ship " * 20_000}, {"truncated": 0}),
)
def test_a_megabyte_and_ten_thousand_windows_take_bounded_memory(name, inputs, expected):
    config = replace(CONFIG, vocab_size=2000, hidden_size=64, intermediate_size=256)
    pieces = PIECES + [f"[unused{i}]" for i in range(2000 - len(PIECES))]
    signature = made(name, config, pieces).module().signature()
    signature(**{key: tf.constant([b"ship"]) for key in inputs})
    Path("/proc/self/clear_refs").write_text("5")  # the peak from here on
    before = memory("VmRSS")
    found = signature(**{key: tf.constant([text]) for key, text in inputs.items()})
    # 165 MB in a process of its own; up to 262 after other tests, whose freed memory is in pieces.
    assert memory("VmHWM") - before < 400
    assert {key: int(found[key][0]) for key in expected} == expected


@pytest.fixture(scope="module")
def ask(tuned):
    """`ask(task, signature, **inputs)`: the outputs as NumPy arrays; each is traced once."""

    @functools.cache
    def traced(name: str, signature: str):
        return tuned(name).module().signature(signature)

    def outputs(name: str, signature: str, **inputs):
        specs = traced(name, signature).structured_input_signature[1]
        tensors = {key: tf.constant(value, specs[key].dtype) for key, value in inputs.items()}
        return {key: x.numpy() for key, x in traced(name, signature)(**tensors).items()}

    return outputs


def single(texts):
    return {"text": texts}


def pair(texts):
    return {"text": texts, "text_pair": texts[::-1]}


# Task, signature -> the inputs that it makes of strings.
CASES = {
    ("classification", "serving_default"): single,
    ("mrpc", "serving_default"): pair,
    ("stsb", "serving_default"): pair,
    ("choice", "serving_default"): lambda texts: {
        "context": texts,
        "choices": np.array([texts, texts[::-1]], object).T.reshape(-1, 2),
    },
    ("squad2", "serving_default"): lambda texts: {"question": texts[::-1], "context": texts},
    ("tagging", "serving_default"): single,
    ("tagging", "words"): lambda texts: {"words": texts},
    ("masked_words", "serving_default"): single,
    ("masked_words", "pseudo_likelihood"): lambda texts: {"sentence": texts},
    ("vectors", "serving_default"): single,
    ("classification", "attention"): single,
}
# Each signature takes a second to trace: those that share their code with others wait.
EVERY_TIME = {(name, "serving_default") for name in ("squad2", "tagging")}


def is_valid(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def check(outputs: dict[str, np.ndarray], texts: list[bytes]) -> None:
    assert outputs["truncated"].dtype == np.int32
    assert (outputs["truncated"] >= 0).all()
    for name, values in outputs.items():
        assert len(values) == len(texts), name
        if values.dtype == object:
            assert all(is_valid(text) for text in values.ravel()), name
        else:
            assert np.isfinite(values).all(), name
    for name in [name.removesuffix("_count") for name in outputs if name.endswith("_count")]:
        for row, text in enumerate(texts):
            count = outputs[f"{name}_count"][row]
            for place in range(count if f"{name}_start" in outputs else 0):
                keys = ("start", "end", "start_byte", "end_byte")
                start, end, first, last = (outputs[f"{name}_{key}"][row, place] for key in keys)
                assert 0 <= first <= last <= len(text) and 0 <= start <= end <= len(text)
                if not is_valid(text):
                    continue
                cut = text[first:last].decode()
                assert text.decode()[start:end] == cut
                if name == "masks":
                    assert cut == "[MASK]"
                elif name != "pieces":  # those are the vocabulary's
                    assert outputs[f"{name}_text"][row, place].decode() == cut


@for_each("case", *[case if case in EVERY_TIME else slow(case) for case in CASES], ids="/".join)
def test_whatever_the_strings_are_there_is_a_defined_answer(case, ask):
    @settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
    @example(HOSTILE)
    @given(st.lists(ANYTHING, min_size=1, max_size=4))
    def holds(texts):
        check(ask(*case, **CASES[case](texts)), texts)

    holds()
    shapes = {key: np.ndim(value) * [0] for key, value in CASES[case]([b""]).items()}
    check(ask(*case, **{key: np.zeros(shape, object) for key, shape in shapes.items()}), [])


TEXTS = ["sea", "seas ship e. ships seas ship e.", ""]  # 1, 12 and 0 pieces


@pytest.mark.slow
def test_examples_are_answered_as_strings_are(ask, tuned):
    def example(**strings):
        lists = {name: tf.train.BytesList(value=[text.encode()]) for name, text in strings.items()}
        features = {name: tf.train.Feature(bytes_list=x) for name, x in lists.items()}
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    inputs = [example(text=text, other="x") for text in TEXTS]
    found = ask("classification", "classify", inputs=inputs)
    expected = ask("classification", "serving_default", text=TEXTS)
    assert found.keys() == {"classes", "scores"}
    np.testing.assert_array_equal(found["classes"], expected["labels"])
    assert_close(found["scores"], expected["probabilities"])
    found = ask("stsb", "regress", inputs=[example(text=text, text_pair=text) for text in TEXTS])
    expected = ask("stsb", "serving_default", text=TEXTS, text_pair=TEXTS)
    assert found.keys() == {"outputs"}
    assert_close(found["outputs"], expected["score"])
    assert ask("classification", "classify", inputs=np.zeros(0, object))["scores"].shape == (0, 2)
    for bad in (b"no example", example(other="x")):
        with pytest.raises(tf.errors.InvalidArgumentError):
            ask("classification", "classify", inputs=[bad])
    for name, method in (("classification", "classify"), ("stsb", "regress")):
        assert tuned(name).module().method_names == {method: f"tensorflow/serving/{method}"}


def test_vectors_are_the_encoder_s_without_padding(ask, tuned, tmp_path):
    model, tokenizer = tuned("vectors").model, tuned("vectors").tokenizer
    inputs = Packer(tokenizer, LENGTH)(tokenizer.tokenize(TEXTS))
    encoder = BertEncoder(CONFIG, dtype="float64")
    encoder.set_weights(model.get_weights())
    expected = encoder(inputs)
    mask = inputs["padding_mask"].numpy()[:, :, np.newaxis]
    states = expected["sequence_output"].numpy()
    found = ask("vectors", "serving_default", text=TEXTS)
    assert_close(found["mean"], (states * mask).sum(1) / mask.sum(1))
    assert_close(found["cls"], states[:, 0])
    assert_close(found["pooled"], expected["pooled_output"])
    of_tokens = ask("vectors", "tokens", **inputs)
    assert_close(of_tokens["mean"], found["mean"])
    (tmp_path / "data.tsv").write_text("text\tlabel\na\tb\n")
    with pytest.raises(InputError, match="train it for a task first"):
        tuned("vectors").task.read(tmp_path / "data.tsv", "validation")


def test_attention_alone_multiplies_unpacked_weights(tuned):
    kernels = CopiedWeights()
    products = {}
    for name, signature in ENCODER_SIGNATURES.items():
        graph = signature.trace(tuned("classification"), kernels).graph.as_graph_def()
        nodes = (node for function in graph.library.function for node in function.node_def)
        products[name] = sum(node.op == "MatMul" for node in nodes)
    segments = 1  # one-hot, times their table
    assert products == {"embed": 4 * CONFIG.num_hidden_layers + 1 + segments, "attention": segments}


@pytest.mark.slow
def test_attention_is_the_encoder_s(ask, tuned, tmp_path):
    # A head that does not read the pooler leaves it untrained.
    assert "pooled" not in ask("masked_words", "embed", text=TEXTS)
    classifier = tuned("classification")
    tokenizer = classifier.tokenizer
    inputs = Packer(tokenizer, LENGTH)(tokenizer.tokenize(TEXTS))
    is_token = inputs["padding_mask"].numpy()[:, np.newaxis, np.newaxis, :, np.newaxis]
    save_model(classifier.model, tmp_path, tokenizer)
    watched = load_model(tmp_path, BertEncoder, attention_probabilities=True)
    probabilities = np.stack(watched(inputs)["attention_probabilities"], 1)
    found = ask("classification", "attention", text=TEXTS)
    assert found["probabilities"].shape == (3, 2, 2, LENGTH, LENGTH)
    assert_close(found["probabilities"], probabilities * is_token)
    assert found["pieces_count"].tolist() == [3, LENGTH, 2]
    assert found["truncated"].tolist() == [0, 12 - (LENGTH - 2), 0]
    assert found["pieces_text"][0].tolist() == [b"[CLS]", b"sea", b"[SEP]", *[b""] * 6]
    assert found["pieces_start"][0, :3].tolist() == [0, 0, 3]
    assert found["pieces_end"][0, :3].tolist() == [0, 3, 3]


@pytest.mark.slow
def test_tokens_are_answered_as_their_text_is(ask, tuned):
    tokenizer = tuned("classification").tokenizer
    inputs = Packer(tokenizer, LENGTH)(tokenizer.tokenize(TEXTS))
    found = ask("classification", "tokens", **inputs)
    expected = ask("classification", "serving_default", text=TEXTS)
    np.testing.assert_array_equal(found["labels"], expected["labels"])
    assert_close(found["probabilities"], expected["probabilities"])

    found = ask("tagging", "tokens", **inputs)
    words = ask("tagging", "serving_default", text=["sea"])
    assert found["label"].shape == (3, LENGTH)
    assert found["label"][0, 1] == words["words_label"][0, 0]
    assert_close(found["probability"][0, 1], words["words_score"][0, 0])

    pairs = (tokenizer.tokenize(texts) for texts in (["sea", "sea"], ["e", "ship"]))
    rows = {name: x[np.newaxis] for name, x in Packer(tokenizer, LENGTH)(*pairs).items()}
    found = ask("choice", "tokens", **rows)
    expected = ask("choice", "serving_default", context=["sea"], choices=[["e", "ship"]])
    assert_close(found["probabilities"], expected["probabilities"])

    is_token = inputs["padding_mask"].numpy() != 0
    logits = tuned("squad2").model(inputs).numpy()[is_token, 1]
    found = ask("squad2", "tokens", **inputs)["end_logits"][is_token]
    assert_close(found, logits)

    ids = inputs["token_ids"].numpy()
    ids[0, 1] = ids[1, 3] = ids[1, 5] = PIECES.index("[MASK]")
    ids[0, 5] = PIECES.index("[MASK]")  # padding is none
    found = ask("masked_words", "tokens", **{**inputs, "token_ids": ids})
    expected = ask("masked_words", "serving_default", text=["[MASK]"])
    assert found["masks_count"].tolist() == [1, 2, 0]
    assert found["masks_token"].tolist() == [[1, 0], [3, 5], [0, 0]]
    np.testing.assert_array_equal(found["masks_words"][0, 0], expected["masks_words"][0, 0])


ROWS = ("token_ids", "segment_ids", "padding_mask")


@for_each(
    "shapes message",
    ([(1, 13)] * 3, "give 1 to 12 tokens a row"),
    ([(1, 0)] * 3, "give 1 to 12 tokens a row"),
    ([(2, 4), (2, 4), (1, 4)], "[Ss]hapes"),
)
def test_rows_that_no_model_takes_are_refused(shapes, message, ask):
    inputs = {name: np.ones(shape, int) for name, shape in zip(ROWS, shapes, strict=True)}
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ask("classification", "tokens", **inputs)


@for_each("name value", ("segment_ids", 2), ("segment_ids", -1), ("token_ids", 14))
def test_ids_that_no_token_has_are_refused(name, value, ask):
    inputs = {name: np.array([[1, 1, 1], [1, 1, 0]]) for name in ROWS}
    inputs[name][1, 2] = value  # padding is not read
    ask("classification", "tokens", **inputs)
    inputs[name][1, 1] = value
    most = {"segment_ids": 1, "token_ids": 13}[name]
    message = rf"give {name} of 0 to {most}, not.*\[{value}\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ask("classification", "tokens", **inputs)


@pytest.mark.slow
def test_lists_of_choices_may_be_padded(ask):
    padded = ask("choice", "serving_default", context=["sea"], choices=[["e", "ship", "", ""]])
    alone = ask("choice", "serving_default", context=["sea"], choices=[["e", "ship"]])
    assert_close(padded["probabilities"][0, :2], alone["probabilities"][0])
    assert padded["probabilities"][0, 2:].tolist() == [0, 0]
    for choices in (np.zeros((1, 0), object), np.array([["e"], ["e"]], object)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="give a list of one choice"):
            ask("choice", "serving_default", context=["sea"], choices=choices)
    empty = ask("choice", "serving_default", context=[], choices=np.zeros((0, 0), object))
    assert empty["choice"].shape == (0,)


@pytest.mark.slow
def test_the_commands_ask_any_signature(tmp_path, call, exports_of):
    folder, served = tmp_path / "model", tmp_path / "served"
    save_model(BertPreTrainer(CONFIG, seed=1), folder, BertTokenizer(PIECES))

    def predict(line, **options):
        out, _ = call(f"predict {line}", **options)
        return [json.loads(row) for row in out.splitlines()]

    with exports_of("serving_default", "embed", "top_20"):
        call("export --name words", model=folder, output=served)
    (tmp_path / "texts.tsv").write_text("text\nsea\nships sea\n")
    found = []
    for model, known in ((folder, "attention, embed, ps"), (served / "words", "embed, serving_d")):
        rows = predict("--signature embed", model=model, input=tmp_path / "texts.tsv")
        assert [row["text"] for row in rows] == ["sea", "ships sea"]
        found.append(rows[1]["mean"])
        error = call.refused("predict --signature x --text sea", model=model)
        assert f"no signature 'x': give one of {known}" in error
    assert_close(*found)
    (row,) = predict("--signature top_20 --text [MASK]", model=served / "words")
    assert len(row["masks"][0]["words"]) == len(PIECES)
    (row,) = predict("--signature attention --text sea", model=folder)
    assert [piece["text"] for piece in row["pieces"]] == ["[CLS]", "sea", "[SEP]"]
    error = call.refused("predict --signature tokens --text sea", model=folder)
    assert "not raw strings" in error


def test_exports_with_a_plan_compute_in_int8(tuned):
    model = tuned("classification")
    layer = model.model.encoder.blocks[0].feed_forward.intermediate
    plan = ProductPlan({layer: Range(8.0, None, is_divided=False, error=0.0)})
    for answerer, number in ((model, 0), (replace(model, plan=plan), 1)):
        (function,) = answerer.module().signatures(["serving_default"]).values()
        graph = function.graph.as_graph_def()
        nodes = [*graph.node, *(n for part in graph.library.function for n in part.node_def)]
        assert sum(node.op == OP for node in nodes) == number
