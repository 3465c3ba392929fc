"""An export with a twin in OpenVINO: which engine answers what."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from openvino_answerers import TEXTS, answerer_of
from running_models import predict, running

from bert_tf import Predictor, export_model
from bert_tf.errors import InputError
from bert_tf.server.models import Models
from bert_tf.serving import engines
from bert_tf.serving.engines import TWIN, Engines
from bert_tf.serving.openvino_model import OpenVinoModel
from bert_tf.serving.precisions import versions
from bert_tf.tasks.signatures import DEFAULT

pytest.importorskip("openvino_tokenizers", reason="the extra openvino has this package, too")


@pytest.fixture(scope="module")
def version(made_once, exports_of) -> Path:
    def make(folder: Path) -> None:
        answerer = answerer_of("classification")
        with exports_of(DEFAULT, "tokens"):
            answerer.export("review", root=folder, twin=answerer)

    return made_once("export_with_twin", make) / "review" / "1"


@pytest.fixture
def measured(monkeypatch) -> Callable[..., None]:
    """`measured(**works)`: OpenVINO takes so many times as long as TensorFlow, by work."""
    monkeypatch.setattr("bert_tf.processor._TIMES", {})

    def measured(**works: float) -> None:
        def best_seconds(runs, seconds):
            batch = len(runs["openvino"].args[-1]["text"]) > 1
            return {"tensorflow": 1.0, "openvino": works["batch" if batch else "short"]}

        monkeypatch.setattr(engines, "best_seconds", best_seconds)

    return measured


def strings(*texts: str) -> dict[str, np.ndarray]:
    return {"text": np.array([text.encode() for text in texts], object)}


def test_both_engines_answer_alike(version):
    ours, theirs = (
        Predictor(version, engine=engine).signature()(text=tf.constant(TEXTS))
        for engine in ("tensorflow", "openvino")
    )
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        if values.dtype == object:
            assert values.tolist() == theirs[name].tolist()
        else:  # as of test_openvino.py
            np.testing.assert_allclose(values, theirs[name], rtol=0, atol=1e-5)


def test_each_size_goes_to_the_faster_engine(version, measured, monkeypatch):
    measured(short=0.5, batch=2.0)
    chosen = Engines(version)
    assert chosen.engine_for(DEFAULT, strings("a")) == "openvino"
    assert chosen.engine_for(DEFAULT, strings("a", "b")) == "tensorflow"
    assert chosen.engine_for("tokens", {"token_ids": np.zeros((1, 3), np.int32)}) == "tensorflow"
    assert chosen.run(DEFAULT, strings("left"))["label"].shape == (1,)
    # What was measured is kept.
    monkeypatch.setattr("bert_tf.processor._TIMES", {})
    monkeypatch.setattr(engines, "best_seconds", lambda *_: pytest.fail("measured again"))
    again = Engines(version)
    assert again.engine_for(DEFAULT, strings("a")) == "openvino"


def test_an_engine_that_is_not_there_or_slower_is_left_out(version, tmp_path, measured, caplog):
    copy = tmp_path / "review" / "1"
    copy.parent.mkdir()
    copy.symlink_to(version)
    measured(short=1.5, batch=2.0)
    (tmp_path / "own").mkdir()
    own = tmp_path / "own" / "1"
    own.mkdir()
    for part in version.iterdir():
        if part.name != "openvino":
            (own / part.name).symlink_to(part)
    with pytest.raises(
        InputError, match=r"model\.xml is not there: export the model again with --"
    ):
        Engines(own, "openvino")
    assert Engines(own).engine_for(DEFAULT, strings("a")) == "tensorflow"
    (own / TWIN).parent.mkdir()
    (own / TWIN).write_text("<net/>")
    assert Engines(own).engine_for(DEFAULT, strings("a")) == "tensorflow"
    assert "TensorFlow alone answers: " in caplog.text


def test_the_server_counts_batches_by_engine(version):
    models = Models(version.parent.parent, engine="openvino")

    async def ask() -> None:
        async with running(models):
            assert (await predict(models, "review", **strings("left")))["label"].shape == (1,)

    asyncio.run(ask())
    line = b'bert_tf_engine_batches_total{engine="openvino",model_name="review"} 1.0'
    assert line in models.metrics.render()


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
        twin=True,
        **data,
    )
    for number, version in versions(tmp_path / "served" / "review").items():
        dtype = next(name for name, x in made.versions.items() if x == number)
        assert OpenVinoModel(version / TWIN).precision == dtype
        ours, theirs = (
            Predictor(version, engine=engine).signature()(text=tf.constant(TEXTS))["probability"]
            for engine in ("tensorflow", "openvino")
        )
        # A step of int8 or bfloat16's 8 bits, in sums of another order.
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1 / 64)


def test_a_twin_is_refused_where_answers_have_places(tmp_path, call):
    answerer = answerer_of("classification")
    answerer.save(tmp_path / "preset")
    told = call.refused("export --name x --format onnx --twin", model=tmp_path / "preset")
    assert "--format onnx and --twin cannot be combined" in told
