"""An export with twins in OpenVINO and ONNX Runtime: which engine answers what."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from running_models import predict, running
from small_answerers import TEXTS, answerer_of, int8_answerer

from bert_tf import Predictor, evaluate, export_model
from bert_tf.errors import InputError
from bert_tf.server.models import Models
from bert_tf.serving import engines
from bert_tf.serving.engines import TWINS, Engines
from bert_tf.serving.onnx_model import OnnxModel
from bert_tf.serving.openvino_model import OpenVinoModel
from bert_tf.serving.portable import SUFFIXES, write_portable
from bert_tf.serving.precisions import versions
from bert_tf.tasks.signatures import DEFAULT

pytest.importorskip("openvino_tokenizers", reason="the extra openvino has this package, too")
pytest.importorskip("tf2onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def version(made_once, exports_of) -> Path:
    def make(folder: Path) -> None:
        answerer = answerer_of("classification")
        with exports_of(DEFAULT, "tokens"):
            answerer.export("review", root=folder, twin=answerer, twin_formats=[*TWINS])

    return made_once("export_with_twin", make) / "review" / "1"


@pytest.fixture
def measured(monkeypatch) -> Callable[..., None]:
    """`measured(**works)`: OpenVINO takes so many times as long as TensorFlow, by work.

    ONNX Runtime takes 1.5 times as long.
    """
    monkeypatch.setattr("bert_tf.processor._TIMES", {})

    def measured(**works: float) -> None:
        def best_seconds(runs, seconds):
            batch = len(runs["openvino"].args[-1]["text"]) > 1
            times = {"tensorflow": 1.0, "onnx": 1.5}
            return times | {"openvino": works["batch" if batch else "short"]}

        monkeypatch.setattr(engines, "best_seconds", best_seconds)

    return measured


def test_a_twin_alone_is_scored_as_its_savedmodel_answers(version, tmp_path):
    labels = Predictor(version, "tensorflow").signature()(text=TEXTS)["label"]
    rows = [f"{text}\t{label.decode()}" for text, label in zip(TEXTS, labels, strict=True)]
    (tmp_path / "data.tsv").write_text("\n".join(["text\tlabel", *rows, ""]), encoding="utf-8")
    twin = str(version / TWINS["openvino"])
    assert evaluate(model=twin, data=str(tmp_path / "data.tsv")).scores["accuracy"] == 1


def strings(*texts: str) -> dict[str, np.ndarray]:
    return {"text": np.array([text.encode() for text in texts], object)}


@pytest.mark.parametrize("engine", TWINS)
def test_engines_answer_alike(version, engine):
    for texts in (TEXTS, TEXTS[:1], []):
        ours, theirs = (
            Predictor(version, engine=name).signature()(text=tf.constant(texts, tf.string))
            for name in ("tensorflow", engine)
        )
        assert ours.keys() == theirs.keys()
        for name, values in ours.items():
            assert values.dtype == theirs[name].dtype and values.shape == theirs[name].shape
            if values.dtype == object:
                assert values.tolist() == theirs[name].tolist()
            else:  # as of test_openvino.py
                np.testing.assert_allclose(values, theirs[name], rtol=0, atol=1e-5)


def test_each_size_goes_to_the_faster_engine(version, measured, monkeypatch):
    measured(short=0.5, batch=2.0)
    chosen = Engines(version)
    assert [*chosen._twins] == ["openvino"]  # the slower one is dropped
    assert chosen.engine_for(DEFAULT, strings("a")) == "openvino"
    assert chosen.engine_for(DEFAULT, strings("a", "b")) == "tensorflow"
    assert chosen.engine_for("tokens", {"token_ids": np.zeros((1, 3), np.int32)}) == "tensorflow"
    assert chosen.run(DEFAULT, strings("left"))["label"].shape == (1,)
    # What was measured is kept.
    monkeypatch.setattr("bert_tf.processor._TIMES", {})
    monkeypatch.setattr(engines, "best_seconds", lambda *_: pytest.fail("measured again"))
    again = Engines(version)
    assert again.engine_for(DEFAULT, strings("a")) == "openvino"


def test_an_engine_that_is_not_there_or_damaged_is_left_out(version, tmp_path, caplog):
    own = tmp_path / "own" / "1"
    own.mkdir(parents=True)
    for part in version.iterdir():
        if part.name not in TWINS:
            (own / part.name).symlink_to(part)
    for name, file in TWINS.items():
        with pytest.raises(InputError, match=rf"{file} is not there: .* with --twin {name}"):
            Engines(own, name)
        assert Engines(own).engine_for(DEFAULT, strings("a")) == "tensorflow"
        (own / file).parent.mkdir()
        (own / file).write_text("<net/>")
        with pytest.raises(InputError, match=rf"{file} cannot be loaded .*export the model again"):
            Engines(own, name)
    assert Engines(own).engine_for(DEFAULT, strings("a")) == "tensorflow"
    for name in TWINS:
        assert f"{name} does not answer: " in caplog.text


@pytest.mark.parametrize("engine", TWINS)
def test_the_server_counts_batches_by_engine(version, engine):
    models = Models(version.parent.parent, engine=engine)

    async def ask() -> None:
        async with running(models):
            assert (await predict(models, "review", **strings("left")))["label"].shape == (1,)

    asyncio.run(ask())
    line = f'bert_tf_engine_batches_total{{engine="{engine}",model_name="review"}} 1.0'
    assert line.encode() in models.metrics.render()


@pytest.mark.parametrize(
    ("name", "format"),
    [(x, "onnx") for x in ("pairs", "regression", "multi_label", "choice", "embedding")]
    + [(x, "openvino") for x in ("pairs", "choice")],  # others: test_openvino.py
)
def test_answers_of_twins_are_those_of_a_savedmodel(tmp_path, name, format):
    answerer = answerer_of(name)
    path = tmp_path / f"model{SUFFIXES[format]}"
    write_portable(answerer.model, path, format, answerer=answerer)
    twin = {"onnx": OnnxModel, "openvino": OpenVinoModel}[format](path, answerer.tokenizer)
    function = answerer.function()
    inputs = {"text": TEXTS, "text_pair": TEXTS[::-1], "context": TEXTS}
    inputs["choices"] = [[text, "", "ships at sea " * 9] for text in TEXTS]
    arrays = {
        key: np.array(
            [tf.compat.as_bytes(x) for x in np.array(inputs[key], object).flat], object
        ).reshape(np.array(inputs[key], object).shape)
        for key in function.structured_input_signature[1]
    }
    found = twin.run(arrays)
    expected = function(**{key: tf.constant(x, tf.string) for key, x in arrays.items()})
    assert found.keys() == expected.keys()
    for output, values in expected.items():
        if values.dtype == tf.string:
            assert found[output].tolist() == values.numpy().tolist()
        else:
            np.testing.assert_allclose(found[output], values, rtol=0, atol=1e-5)


def test_int8_is_computed_in_integers_by_onnx_runtime(tmp_path):
    answerer = int8_answerer()
    path = tmp_path / "model.onnx"
    write_portable(answerer.model, path, "onnx", answerer=answerer)
    graph = pytest.importorskip("onnx").load(path).graph
    operations = [node.op_type for node in graph.node]
    # Of one layer: Q, K, V and three more.
    assert operations.count("MatMulIntegerToFloat") == 6
    assert "DequantizeLinear" not in operations
    ours = answerer.function()(text=tf.constant(TEXTS))["probabilities"]
    found = OnnxModel(path, answerer.tokenizer).run(strings(*TEXTS))["probabilities"]
    # As of test_openvino.py: a value at the edge of a step may fall to either side.
    np.testing.assert_allclose(found, ours, rtol=0, atol=1 / 127)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bfloat16", "int8"])
def test_a_twin_computes_in_the_type_of_its_version(tmp_path, precision):
    answerer = answerer_of("classification")
    answerer.save(tmp_path / "preset")
    lines = [f"{text}\t{answerer.labels[i % 2]}" for i, text in enumerate(TEXTS * 8)]
    (tmp_path / "data.tsv").write_text("\n".join(["text\tlabel", *lines, ""]), encoding="utf-8")
    data = {"calibration": str(tmp_path / "data.tsv")} if precision == "int8" else {}
    made = export_model(
        model=str(tmp_path / "preset"),
        name="review",
        output=str(tmp_path / "served"),
        precision=precision,
        twin=["openvino"] if precision == "bfloat16" else [*TWINS],
        **data,
    )
    for number, version in versions(tmp_path / "served" / "review").items():
        dtype = next(name for name, x in made.versions.items() if x == number)
        assert OpenVinoModel(version / TWINS["openvino"]).precision == dtype
        engines = ["tensorflow", *(name for name in TWINS if (version / name).is_dir())]
        ours, *others = (
            Predictor(version, engine=engine).signature()(text=tf.constant(TEXTS))["probability"]
            for engine in engines
        )
        for theirs in others:
            # A step of int8 or bfloat16's 8 bits, in sums of another order.
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1 / 64)


def test_a_twin_is_refused_where_answers_have_places(tmp_path, call):
    answerer = answerer_of("classification")
    answerer.save(tmp_path / "preset")
    told = call.refused("export --name x --format onnx --twin onnx", model=tmp_path / "preset")
    assert "--format onnx and --twin cannot be combined" in told
    half = "export --name x --precision bfloat16 --twin onnx"
    assert "ONNX Runtime has no bfloat16" in call.refused(half, model=tmp_path / "preset")
