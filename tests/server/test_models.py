import asyncio
import re
import shutil
import threading
import time
from pathlib import Path

import grpc
import pytest
import tensorflow as tf
from running_models import TEXTS, predict, running
from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus

from bert_tf.errors import InputError
from bert_tf.server import models as models_module
from bert_tf.server import servable
from bert_tf.server.errors import ServingError
from bert_tf.server.models import Models
from bert_tf.server.playground import describe
from bert_tf.serving.export import list_model

State = ModelVersionStatus


async def until(condition, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


def states(models, name="toy") -> dict[int, int]:
    return {status.version: status.state for status in models.status(name).model_version_status}


def add_version(toys: Path, folder: Path, version: int) -> Path:
    """Adds a version as an export does: at once."""
    shutil.copytree(toys / "toy" / "1", folder / "toy" / f".{version}")
    return (folder / "toy" / f".{version}").rename(folder / "toy" / str(version))


async def test_models_are_found_by_name_and_version(toys):
    models = Models(toys)
    async with running(models):
        assert models.names == ["toy"]
        answers = await predict(models)
        assert answers["length"].tolist() == [8, 4]
        again = await predict(models, version=1)
        assert again["letters_text"].shape == (2, 8)
        absent = "There is no version"
        for name, version, label, code, message in [
            ("foo", None, None, "NOT_FOUND", f"{absent} of a model foo"),
            ("toy", 9, None, "NOT_FOUND", f"{absent} 9 of a model toy"),
            ("toy", None, "x", "INVALID_ARGUMENT", "toy has no version with the label x"),
            ("", None, None, "INVALID_ARGUMENT", "The request names no model"),
        ]:
            with pytest.raises(ServingError) as refused:
                await predict(models, name, version, label)
            assert (refused.value.code.name, refused.value.message) == (code, message)
        for version, message in [
            (None, "There is no version of a model foo"),
            (9, "There is no version 9 of a model foo"),
        ]:
            with pytest.raises(ServingError, match=message):
                models.status("foo", version)
    with pytest.raises(ServingError) as refused:
        await predict(models)
    assert refused.value.code == grpc.StatusCode.UNAVAILABLE


async def test_a_version_that_a_request_holds_is_unloaded_after_it(toys, tmp_path):
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    async with running(models := Models(tmp_path, poll_seconds=0.02)):
        with models.servable("toy") as old:
            add_version(toys, tmp_path, 2)
            await until(lambda: states(models).get(2) == State.AVAILABLE)
            with models.servable("toy") as new:
                assert new.version == 2
            await until(lambda: states(models)[1] == State.UNLOADING)
            await old.predict("serving_default", {"text": TEXTS})
        await until(lambda: states(models)[1] == State.END)
        assert list(states(models)) == [2, 1]
        shutil.rmtree(tmp_path / "toy" / "2")  # the old one comes back
        await until(lambda: states(models) == {2: State.END, 1: State.AVAILABLE})
        await predict(models)
        shutil.rmtree(tmp_path / "toy" / "1")
        await until(lambda: not models.names)


async def test_a_version_that_cannot_be_loaded_is_reported_and_the_old_one_serves(toys, tmp_path):
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    async with running(models := Models(tmp_path, poll_seconds=0.02)):
        broken = tmp_path / "toy" / "2"
        broken.mkdir()
        await until(lambda: states(models).get(2) == State.END)
        status = models.status("toy", 2).model_version_status[0].status
        assert status.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        assert "has no saved_model.pb" in status.error_message
        assert states(models)[1] == State.AVAILABLE
        await predict(models)
        # Its files arrive one by one: it is tried again whenever they change.
        (broken / "saved_model.pb").write_bytes(b"\xff")
        await until(lambda: models.status("toy", 2).model_version_status[0].status.error_code == 3)
        shutil.rmtree(broken)
        add_version(toys, tmp_path, 2)
        await until(lambda: states(models) == {2: State.AVAILABLE, 1: State.END})


async def test_a_models_config_chooses_versions_and_labels(toys, tmp_path):
    for version in (1, 3, 7):
        shutil.copytree(toys / "toy" / "1", tmp_path / "a" / str(version))
    (tmp_path / "models.config").write_text("""
        model_config_list {
          config {
            name: "two" base_path: "a" model_platform: "tensorflow"
            model_version_policy { specific { versions: 1 versions: 7 } }
            version_labels { key: "stable" value: 1 }
            version_labels { key: "canary" value: 3 }
          }
          config { name: "newest" base_path: "a" }
          config { name: "all" base_path: "a" model_version_policy { all {} } }
          config { name: "absent" base_path: "b" }
        }
    """)
    async with running(models := Models(tmp_path / "models.config")):
        assert models.names == ["all", "newest", "two"]
        assert list(states(models, "two")) == [7, 1]
        assert list(states(models, "newest")) == [7]
        assert list(states(models, "all")) == [7, 3, 1]
        with models.servable("two", label="stable") as servable:
            assert servable.version == 1
        with pytest.raises(ServingError, match="no version 3 of a model two"):
            await predict(models, "two", label="canary")


async def test_a_changed_models_config_is_followed_and_a_label_never_names_what_is_not_loaded(
    toys, tmp_path, caplog
):
    for version in (1, 3):
        shutil.copytree(toys / "toy" / "1", tmp_path / "a" / str(version))
    file = tmp_path / "models.config"

    def configure(version):
        file.write_text(f"""
            model_config_list {{ config {{
                name: "toy" base_path: "a"
                model_version_policy {{ specific {{ versions: {version} }} }}
                version_labels {{ key: "stable" value: {version} }}
            }} }}
        """)

    configure(1)
    async with running(models := Models(file, poll_seconds=0.01)):
        configure(3)
        served = set()
        while states(models) != {3: State.AVAILABLE, 1: State.END}:
            with models.servable("toy", label="stable") as servable:
                served.add(servable.version)
            await asyncio.sleep(0)
        assert served == {1, 3}
        file.write_text("models {")
        await until(lambda: "configures no models" in caplog.text)
        await predict(models, label="stable")
        configure(1)  # back again
        await until(lambda: states(models) == {3: State.END, 1: State.AVAILABLE})
        await predict(models, label="stable")
    assert caplog.text.count("configures no models") == 1


def add_model(folder: Path, factor: float) -> Path:
    """A model whose answers say which it is."""
    toy = tf.Module()
    toy.factor = tf.Variable(factor)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "text")])
    def answer(text):
        return {"factor": toy.factor * tf.ones_like(tf.strings.length(text), tf.float32)}

    tf.saved_model.save(toy, str(folder), signatures=answer)
    return folder


async def factor(models) -> float:
    return (await predict(models))["factor"][0]


async def test_another_folder_and_files_replaced_in_place_are_loaded_while_the_old_ones_serve(
    tmp_path,
):
    file, (a, b) = tmp_path / "models.config", (tmp_path / "a" / "1", tmp_path / "b" / "1")
    add_model(a, 1.0)
    add_model(b, 2.0)
    config = 'model_config_list { config { name: "toy" base_path: "%s" } }'
    file.write_text(config % "a")
    async with running(models := Models(file, poll_seconds=3600)):

        async def polled(expected: float) -> set[float]:
            """The answers from a look at the files until the one that is expected."""
            for _ in range(2):  # files that still change are let be
                await models._follow()
                await models._poll()
            factors = {await factor(models)}
            async with asyncio.timeout(60):
                while len(models._servables["toy"]) > 1 or expected not in factors:
                    factors.add(await factor(models))
                    await models._poll()
                    await asyncio.sleep(0.01)
            assert models.is_ready
            return factors

        assert await polled(1.0) == {1.0}
        file.write_text(config % "b")
        assert await polled(2.0) == {1.0, 2.0}
        shutil.rmtree(b.parent)
        assert await polled(2.0) == {2.0}
        shutil.copytree(a, b)
        assert await polled(1.0) == {1.0, 2.0}
        (b / "saved_model.pb").write_bytes(b"")  # cannot be loaded: the old one serves on
        for _ in range(2):
            await models._poll()
        await until(lambda: models._servables["toy"][-1].error)
        await models._poll()
        assert await factor(models) == 1.0
        assert models.is_ready
        shutil.copy(a / "saved_model.pb", b)
        for _ in range(2):
            await models._poll()
        await until(lambda: states(models) == {1: State.AVAILABLE})
        await models._poll()
        await until(lambda: all(x.state == State.END for x in models._servables["toy"][:-1]))


async def test_a_label_whose_version_is_loading_asks_to_try_again(toys, tmp_path, monkeypatch):
    for version in (1, 3):
        shutil.copytree(toys / "toy" / "1", tmp_path / "toy" / str(version))
    go_on, load = threading.Event(), servable.Servable.load

    def late(self):
        if self.version == 3:
            go_on.wait(60)
        load(self)

    monkeypatch.setattr(servable.Servable, "load", late)
    text = 'model_config_list { config { name: "toy" base_path: "toy" %s } }'
    (tmp_path / "models.config").write_text(
        text % "model_version_policy { specific { versions: 1 } } "
        "version_labels { key: 'moved' value: 1 }"
    )
    async with running(models := Models(tmp_path / "models.config", poll_seconds=0.01)):
        every = "model_version_policy { all {} } " + " ".join(
            f"version_labels {{ key: '{label}' value: 3 }}" for label in ("new", "moved")
        )
        (tmp_path / "models.config").write_text(text % every)
        await until(lambda: 3 in states(models))
        try:
            with pytest.raises(ServingError, match="has the label new, is loading") as refused:
                await predict(models, label="new")
            assert refused.value.code == grpc.StatusCode.UNAVAILABLE
            with models.servable("toy", label="moved") as held:
                assert held.version == 1  # until the other is there
        finally:
            go_on.set()
        await until(lambda: states(models)[3] == State.AVAILABLE)
        await until(lambda: models._labels["toy"] == {"new": 3, "moved": 3})


async def test_a_number_beyond_int64_is_no_version(toys, tmp_path):
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    async with running(models := Models(tmp_path, poll_seconds=3600)):
        add_version(toys, tmp_path, 2**63)
        add_version(toys, tmp_path, 20261127162026123456789)
        await models._poll()
        assert states(models) == {1: State.AVAILABLE}
        assert models.is_ready and describe(models)
        add_version(toys, tmp_path, 2**63 - 1)
        await models._poll()
        await until(lambda: states(models)[2**63 - 1] == State.AVAILABLE)


async def test_a_containers_base_path_is_found_beside_the_file_and_what_is_missing_named_once(
    toys, tmp_path, caplog
):
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    assert list_model(tmp_path, "toy")
    file = tmp_path / "models.config"
    async with running(models := Models(file, poll_seconds=3600)):
        assert models.names == ["toy"]
        assert not caplog.messages
        file.write_text("""model_config_list {
          config { name: "gone" base_path: "/models/gone" }
          config { name: "toy" base_path: "/models/toy"
            model_version_policy { specific { versions: 1 versions: 5 } }
            version_labels { key: "stable" value: 1 } version_labels { key: "new" value: 4 } }
        }""")
        for _ in range(2):
            await models._follow()
            await models._poll()
        assert caplog.messages == [
            f"{file}: gone has no version in /models/gone: correct base_path, or export it there",
            f"{file}: toy has no version 5 in {tmp_path}/toy: correct base_path or specific, or "
            "export it there",
            f"{file}: toy labels version 4 new, which it does not serve: add it to specific "
            "{ versions }, or correct version_labels",
        ]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("models {", "configures no models"),
        ("model_config_list { config { base_path: 'a' } }", "a model has no name"),
        (
            "model_config_list { config { name: 'a' } config { name: 'a' base_path: 'a' } }",
            "there are several models a",
        ),
        ("", "names no model"),
    ],
)
def test_a_bad_models_config_is_refused(config, message, tmp_path):
    (tmp_path / "models.config").write_text(config)
    with pytest.raises(InputError, match=message):
        asyncio.run(Models(tmp_path / "models.config").start())


def test_a_folder_without_models_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no models"):
        asyncio.run(Models(tmp_path).start())
    with pytest.raises(InputError, match="holds no models"):
        asyncio.run(Models(tmp_path / "absent").start())


async def test_closing_finishes_what_was_accepted(toys):
    models = Models(toys)
    await models.start()
    requests = [asyncio.create_task(predict(models)) for _ in range(20)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(models.close())
    await asyncio.sleep(0)
    with pytest.raises(ServingError) as refused:
        await predict(models)
    assert refused.value.code == grpc.StatusCode.UNAVAILABLE
    await closing
    assert all(request.done() for request in requests)
    for request in requests:
        assert request.result()["length"].tolist() == [8, 4]
    assert states(models) == {1: State.END}


@pytest.mark.parametrize("source", ["", "toy", "models.config"])
async def test_a_model_whose_folder_is_moved_away_stays_loaded(toys, tmp_path, source):
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    config = 'model_config_list { config { name: "toy" base_path: "toy" } }'
    (tmp_path / "models.config").write_text(config)
    async with running(models := Models(tmp_path / source, poll_seconds=3600)):
        (tmp_path / "toy").rename(tmp_path.parent / f"away-{tmp_path.name}")
        await models._poll()
        assert states(models) == {1: State.AVAILABLE}
        await predict(models)
        (tmp_path / "toy").mkdir()  # without versions: nothing is to be served
        await models._poll()
        await until(lambda: states(models) == {1: State.END})


async def test_a_failure_to_load_that_passes_is_tried_again_and_late_ones_less_often(
    toys, tmp_path, monkeypatch
):
    shutil.copytree(toys / "toy", tmp_path / "other")
    shutil.copytree(toys / "toy", tmp_path / "toy")
    failures = [MemoryError(), OSError("Stale file handle")]

    class Failing(servable.LoadedModel):
        def __init__(self, directory):
            if failures and directory.parent.name == "toy":
                raise failures.pop(0)
            super().__init__(directory)

    monkeypatch.setattr(servable, "LoadedModel", Failing)
    async with running(models := Models(tmp_path, poll_seconds=3600)):
        assert models.names == ["other"]
        for code, seconds in [("RESOURCE_EXHAUSTED", 60), ("UNAVAILABLE", 120)]:
            (failed,) = models._servables["toy"]
            assert failed.error.code.name == code
            assert 0 <= failed.retry_at - time.monotonic() - seconds + 30 <= 30
            await models._poll()
            assert failed.error.code.name == code  # it is too early
            failed.retry_at = time.monotonic()
            await models._poll()
            await until(lambda: states(models)[1] in (State.AVAILABLE, State.END))
        await predict(models)
        (status,) = models.status("toy").model_version_status
        assert status.status.error_message == ""


async def test_metrics_forget_versions_that_were_unloaded_long_ago(toys, tmp_path, monkeypatch):
    monkeypatch.setattr(models_module, "_REMEMBERED", 1)
    shutil.copytree(toys, tmp_path, dirs_exist_ok=True)
    async with running(models := Models(tmp_path, poll_seconds=0.02)):
        for version in (2, 3):
            add_version(toys, tmp_path, version)
            shutil.rmtree(tmp_path / "toy" / str(version - 1))
            await until(lambda v=version: states(models).get(v) == State.AVAILABLE)
            await until(lambda v=version: states(models).get(v - 1) == State.END)
        await until(lambda: list(states(models)) == [3, 2])
        text = models.metrics.render().decode()
        paths = set(re.findall('model_path="[^"]*/toy/([0-9])"', text))
        assert paths == {"2", "3"}


async def test_a_configured_model_without_a_folder_is_not_ready(toys, tmp_path):
    text = "\n".join(
        f'config {{ name: "{name}" base_path: "{toys}/{name}" }}' for name in ("toy", "gone")
    )
    (tmp_path / "models.config").write_text(f"model_config_list {{ {text} }}")
    async with running(models := Models(tmp_path / "models.config")):
        assert (models.readiness(), models.is_ready) == ({"gone": False, "toy": True}, False)


async def test_a_folder_of_one_model_is_served_under_a_name(toys):
    async with running(models := Models(toys / "toy", name="default")):
        assert models.names == ["default"]
