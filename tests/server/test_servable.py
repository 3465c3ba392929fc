import shutil
from pathlib import Path

import grpc
import numpy as np
import pytest
import tensorflow as tf
from cases import for_each
from running_models import TEXTS, predict, running
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus
from tensorflow_serving.apis.prediction_log_pb2 import PredictionLog

from bert_tf.errors import InputError
from bert_tf.server import servable
from bert_tf.server.configuration import BatchingParameters
from bert_tf.server.errors import ServingError
from bert_tf.server.models import Models
from bert_tf.server.servable import REQUESTS, can_join, refuse_truncated, without_padding

State = ModelVersionStatus


async def test_inputs_that_a_signature_does_not_take_are_refused(toys):
    async with running(models := Models(toys / "toy")):
        for inputs, message in [
            ({"text": np.array([1, 2])}, 'input "text" has the type int64: .* string'),
            ({"text": np.array(b"a", object)}, r'"text" has the shape \[\]: .* \[-1\]'),
            ({"text": TEXTS.reshape(1, 2)}, r"the shape \[1, 2\]"),
            ({"txt": TEXTS}, "the inputs are txt: the signature takes text"),
            ({}, "the inputs are none: the signature takes text"),
        ]:
            with models.servable("toy") as held:
                with pytest.raises(ServingError, match=message) as refused:
                    await held.predict("serving_default", inputs)
                assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT
                with pytest.raises(ServingError, match="no signature x: the model has serving_def"):
                    held.signature("x")
        empty = await predict(models, text=np.empty(0, object))
        assert empty["length"].shape == (0,)


def write_warm_up(version: Path, texts: list[bytes], signature_name="serving_default") -> None:
    log = PredictionLog()
    request = log.predict_log.request
    request.model_spec.signature_name = signature_name
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(texts))
    (version / REQUESTS).parent.mkdir(exist_ok=True)
    with tf.io.TFRecordWriter(str(version / REQUESTS)) as writer:
        writer.write(log.SerializeToString())


async def test_warm_up_requests_are_replayed_and_a_failing_one_fails_the_load(toys, tmp_path):
    for version, name in [(1, "serving_default"), (2, "absent")]:
        shutil.copytree(toys / "toy" / "1", tmp_path / str(version) / "toy" / "1")
        write_warm_up(tmp_path / str(version) / "toy" / "1", [b"the seas"], name)
    async with running(models := Models(tmp_path / "1")):
        assert models.names == ["toy"]
        assert b":tensorflow:serving:model_warmup_latency_count{" in models.metrics.render()
    with pytest.raises(InputError, match="There is no signature absent"):
        await Models(tmp_path / "2").start()


async def test_batching_parameters_of_a_version_or_of_all_join_and_limit_requests(toys, tmp_path):
    for name in ("plain", "batched"):
        shutil.copytree(toys / "toy", tmp_path / name)
    file = tmp_path / "batched" / "1" / "batching_params.pbtxt"
    file.write_text("max_batch_size { value: 4 } allowed_batch_sizes: 4")
    defaults, many = BatchingParameters(max_enqueued_batches=9), np.array([b"a"] * 5, object)
    async with running(models := Models(tmp_path, batching=defaults)):
        with models.servable("plain") as plain, models.servable("batched") as batched:
            assert batched._queue.parameters == BatchingParameters(4, 0, 9, 0, (4,))
            assert (plain._joined, batched._joined) == (set(), {"serving_default"})
        assert (await predict(models, "batched"))["length"].tolist() == [8, 4]
        assert len((await predict(models, "plain", text=many))["length"]) == 5
        with pytest.raises(ServingError, match="has 5 rows: send at most 4") as refused:
            await predict(models, "batched", text=many)
        assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT
    models = Models(tmp_path, batching=defaults, overrides={"max_batch_size": 3})
    async with running(models):
        for name in ("plain", "batched"):
            with models.servable(name) as held:
                assert held._queue.parameters == BatchingParameters(3, 0, 9)
                assert held._joined == {"serving_default"}
        with pytest.raises(ServingError, match="at most 3"):
            await predict(models, "plain", text=many)
    file.write_text("max_batch_size: 4")
    with pytest.raises(InputError, match=r"no model can be loaded .* has no batching parameters"):
        await Models(tmp_path / "batched").start()


async def test_an_answer_that_is_too_large_is_refused(toys, monkeypatch):
    monkeypatch.setattr(servable, "_LARGEST_ANSWER", 1000)
    async with running(models := Models(toys)):
        await predict(models)
        with pytest.raises(ServingError, match="send fewer rows") as refused:
            await predict(models, text=np.array([b"a" * 400], object))
        assert refused.value.code == grpc.StatusCode.INVALID_ARGUMENT


def signature(inputs: dict[str, list[int]], outputs: dict[str, list[int]]) -> SignatureDef:
    definition = SignatureDef()
    for infos, shapes in ((definition.inputs, inputs), (definition.outputs, outputs)):
        for name, sizes in shapes.items():
            infos[name].tensor_shape.SetInParent()
            for size in sizes:
                infos[name].tensor_shape.dim.add(size=size)
    return definition


@for_each(
    "inputs outputs expected",
    ({"text": [-1]}, {"label": [-1], "labels": [-1, 3]}, True),
    ({"text": [-1]}, {"words_count": [-1], "words_text": [-1, -1]}, True),
    ({"text": [-1]}, {"masks_count": [-1], "masks_words": [-1, -1, 5]}, True),
    # Nothing tells how wide these would be alone.
    ({"text": [-1]}, {"pieces_count": [-1], "probabilities": [-1, 2, 2, -1, -1]}, False),
    ({"text": [-1]}, {"words_count": [-1], "words_pairs": [-1, -1, -1]}, False),
    # As wide as the inputs.
    ({"context": [-1], "choices": [-1, -1]}, {"probabilities": [-1, -1]}, True),
    ({"x": [-1]}, {"total": []}, False),
    ({"x": [4]}, {"y": [-1]}, False),
)
def test_requests_are_joined_where_their_answers_stay_the_same(inputs, outputs, expected):
    assert can_join(signature(inputs, outputs)) == expected


def test_truncated_rows_are_refused():
    for truncated, message in (([0, 3], "Row 1 is 3 word"), ([[0, 0], [0, 3]], "1, text 1, is 3")):
        with pytest.raises(ServingError, match=message):
            refuse_truncated({"truncated": np.array(truncated)})
    refuse_truncated({"truncated": np.zeros(2, int)})


def test_lists_lose_their_padding_alone():
    """A name that looks like a list's may have another meaning in another's model."""
    sizes = {"tags_count": [-1], "tags_text": [-1, -1], "tags_score": [-1, -1], "tags_of": [-1, 4]}
    score, padded = np.array([[1, 2, 3, 0], [4, 0, 0, 0]]), np.array([[1, 2, 0, 0], [3, 0, 0, 0]])
    outputs = {"tags_text": padded, "tags_score": score, "tags_of": padded}
    outputs["tags_count"] = np.array([2, 1])
    shorter = without_padding(signature({}, sizes), outputs)
    outputs["tags_text"] = padded[:, :2]
    one, other = ({name: x.tolist() for name, x in y.items()} for y in (shorter, outputs))
    assert one == other
