import asyncio
import re
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from cases import for_each, refused
from running_models import TEXTS, predict, running, until
from tensorflow_serving.apis.get_model_status_pb2 import ModelVersionStatus

from bert_tf.server import models as models_module
from bert_tf.server import servable
from bert_tf.server.errors import ServingError
from bert_tf.server.models import Models
from bert_tf.server.playground import describe
from bert_tf.serving.export import list_model

State = ModelVersionStatus


@pytest.fixture
def folder(toys, tmp_path) -> Path:
    return Path(shutil.copytree(toys, tmp_path / "models"))


@pytest.fixture
def add(toys, folder) -> Callable[[int], Path]:
    """Adds a version of `toy` to `folder` as an export does: at once."""

    def add(version: int) -> Path:
        hidden = Path(shutil.copytree(toys / "toy" / "1", folder / "toy" / f".{version}"))
        return hidden.rename(folder / "toy" / str(version))

    return add


def entry(name="toy", path="toy", policy="", **labels: int) -> str:
    """A model of a models.config, with some of its versions, such as "specific { versions: 1 }"."""
    keys = "".join(f"version_labels {{ key: '{x}' value: {labels[x]} }}" for x in labels)
    chosen = f"model_version_policy {{ {policy} }}"
    return f"config {{ name: '{name}' base_path: '{path}' {chosen} {keys} }}"


def configure(folder: Path, *entries: str) -> Path:
    file = folder / "models.config"
    file.write_text(f"model_config_list {{ {' '.join(entries)} }}")
    return file


def states(models, name="toy") -> dict[int, int]:
    return {status.version: status.state for status in models.status(name).model_version_status}


async def look(models, times=1) -> None:
    for _ in range(times):
        if models._is_configured:
            await models._follow()
        await models._poll()


async def test_models_are_found_by_name_and_version(toys):
    async with running(models := Models(toys)):
        assert models.names == ["toy"]
        assert (await predict(models))["length"].tolist() == [8, 4]
        assert (await predict(models, version=1))["letters_text"].shape == (2, 8)
        for name, version, label, code, message in [
            ("foo", None, None, "NOT_FOUND", "There is no model foo: the server has toy"),
            ("toy", 9, None, "NOT_FOUND", "There is no version 9 of the model toy: it has 1"),
            ("toy", None, "x", "INVALID_ARGUMENT", "toy has no version with the label x"),
            ("", None, None, "INVALID_ARGUMENT", "The request does not name a model"),
        ]:
            for ask in (models.servable, models.status):
                with pytest.raises(ServingError) as refused:
                    ask(name, version, label)
                assert (refused.value.code.name, refused.value.message) == (code, message)
    with pytest.raises(ServingError) as refused:
        await predict(models)
    assert refused.value.code == grpc.StatusCode.UNAVAILABLE


async def test_the_first_loads_are_shown_alone(folder, add):
    steps, models = [], Models(folder, poll_seconds=0.02)
    models.step = lambda *step: steps.append(step)
    async with running(models):
        add(2)
        await until(lambda: states(models).get(2) == State.AVAILABLE)
    assert steps == [("loading toy, version 1", 0, 1)]


async def test_a_version_that_a_request_holds_is_unloaded_after_it(folder, add):
    async with running(models := Models(folder, poll_seconds=0.02)):
        with models.servable("toy") as old:
            add(2)
            await until(lambda: states(models).get(2) == State.AVAILABLE)
            with models.servable("toy") as new:
                assert new.version == 2
            await until(lambda: states(models)[1] == State.UNLOADING)
            await old.predict("serving_default", {"text": TEXTS})
        await until(lambda: states(models)[1] == State.END)
        assert list(states(models)) == [2, 1]
        shutil.rmtree(folder / "toy" / "2")  # the old one comes back
        await until(lambda: states(models) == {2: State.END, 1: State.AVAILABLE})
        await predict(models)
        shutil.rmtree(folder / "toy" / "1")
        await until(lambda: not models.names)


async def test_a_version_that_cannot_be_loaded_is_reported_and_the_old_one_serves(folder, add):
    async with running(models := Models(folder, poll_seconds=0.02)):
        broken = folder / "toy" / "2"
        broken.mkdir()
        await until(lambda: states(models).get(2) == State.END)
        status = models.status("toy", 2).model_version_status[0].status
        assert status.error_code == grpc.StatusCode.NOT_FOUND.value[0]
        assert "has no saved_model.pb" in status.error_message
        assert states(models)[1] == State.AVAILABLE
        await predict(models)
        ((version,),) = (model["versions"] for model in describe(models))
        assert version["version"] == 1
        # Its files arrive one by one: it is tried again whenever they change.
        (broken / "saved_model.pb").write_bytes(b"\xff")
        await until(lambda: models.status("toy", 2).model_version_status[0].status.error_code == 3)
        shutil.rmtree(broken)
        add(2)
        await until(lambda: states(models) == {2: State.AVAILABLE, 1: State.END})


async def test_a_models_config_chooses_versions_and_labels(folder, add):
    for version in (3, 7):
        add(version)
    two = entry("two", policy="specific { versions: 1 versions: 7 }", stable=1, new=3)
    others = entry("newest"), entry("all", policy="all {}"), entry("absent", "b")
    file = configure(folder, two, *others)
    async with running(models := Models(file)):
        assert models.names == ["all", "newest", "two"]
        assert list(states(models, "two")) == [7, 1]
        assert list(states(models, "newest")) == [7]
        assert list(states(models, "all")) == [7, 3, 1]
        with models.servable("two", label="stable") as servable:
            assert servable.version == 1
        with pytest.raises(ServingError, match="no version 3 of the model two"):
            await predict(models, "two", label="new")
        assert models.readiness() == {"absent": False, "all": True, "newest": True, "two": True}
        assert not models.is_ready


async def test_a_changed_models_config_is_followed(folder, add, caplog):
    add(3)

    def choose(version: int) -> Path:
        policy = f"specific {{ versions: {version} }}"
        return configure(folder, entry(policy=policy, stable=version))

    file = choose(1)
    async with running(models := Models(file, poll_seconds=0.01)):
        choose(3)
        await until(lambda: states(models) == {3: State.AVAILABLE, 1: State.END})
        with models.servable("toy", label="stable") as servable:
            assert servable.version == 3
        file.write_text("models {")
        await until(lambda: "configures no models" in caplog.text)
        await predict(models, label="stable")
        choose(1)  # back again
        await until(lambda: states(models) == {3: State.END, 1: State.AVAILABLE})
        await predict(models, label="stable")
    assert caplog.text.count("configures no models") == 1


async def length(models) -> float:
    """The length of "the seas", in the unit of the model that answers."""
    return (await predict(models))["length"][0]


async def test_another_folder_and_replaced_files_load_while_old_ones_serve(tmp_path, save_toy):
    a, b = (save_toy(tmp_path / x / "1", scale) for x, scale in (("a", 1.0), ("b", 2.0)))
    file = configure(tmp_path, entry(path="a"))
    async with running(models := Models(file, poll_seconds=3600)):

        async def polled(expected: float) -> set[float]:
            """The answers from a look at the files until the one that is expected."""
            await look(models, times=2)  # files that still change are let be
            lengths = {await length(models)}
            async with asyncio.timeout(60):
                while len(models._servables["toy"]) > 1 or expected not in lengths:
                    lengths.add(await length(models))
                    await models._poll()
                    await asyncio.sleep(0.01)
            assert models.is_ready
            return lengths

        assert await polled(8.0) == {8.0}
        configure(tmp_path, entry(path="b"))
        assert await polled(16.0) == {8.0, 16.0}
        shutil.rmtree(b.parent)
        assert await polled(16.0) == {16.0}
        shutil.copytree(a, b)
        assert await polled(8.0) == {8.0, 16.0}
        (b / "saved_model.pb").write_bytes(b"")  # cannot be loaded: the old one serves on
        await look(models, times=2)
        await until(lambda: models._servables["toy"][-1].error)
        await look(models)
        assert await length(models) == 8.0
        assert models.is_ready
        shutil.copy(a / "saved_model.pb", b)
        await look(models, times=2)
        await until(lambda: states(models) == {1: State.AVAILABLE})
        await look(models)
        await until(lambda: all(x.state == State.END for x in models._servables["toy"][:-1]))


async def test_a_label_whose_version_is_loading_asks_to_try_again(folder, add, monkeypatch):
    go_on, load = threading.Event(), servable.Servable.load

    def late(self):
        if self.version == 3:
            go_on.wait(60)
        load(self)

    add(3)
    monkeypatch.setattr(servable.Servable, "load", late)
    file = configure(folder, entry(policy="specific { versions: 1 }"))
    async with running(models := Models(file, poll_seconds=0.01)):
        configure(folder, entry(policy="all {}", new=3))
        await until(lambda: 3 in states(models))
        try:
            with pytest.raises(ServingError, match="has the label new, is loading") as refused:
                await predict(models, label="new")
            assert refused.value.code == grpc.StatusCode.UNAVAILABLE
        finally:
            go_on.set()
        await until(lambda: states(models)[3] == State.AVAILABLE)
        await predict(models, label="new")


async def test_a_number_beyond_int64_is_no_version(folder, add):
    async with running(models := Models(folder, poll_seconds=3600)):
        add(2**63)
        add(20261127162026123456789)
        await look(models)
        assert states(models) == {1: State.AVAILABLE}
        assert models.is_ready and describe(models)
        add(2**63 - 1)
        await look(models)
        await until(lambda: states(models)[2**63 - 1] == State.AVAILABLE)


async def test_a_containers_base_path_is_found_and_what_is_missing_named_once(folder, caplog):
    assert list_model(folder, "toy")
    file = folder / "models.config"
    async with running(models := Models(file, poll_seconds=3600)):
        assert models.names == ["toy"]
        assert not caplog.messages
        policy = "specific { versions: 1 versions: 5 }"
        toy = entry(path="/models/toy", policy=policy, stable=1, new=4)
        configure(folder, entry("gone", "/models/gone"), toy)
        await look(models, times=2)
        assert caplog.messages == [
            f"{file}: gone has no version in /models/gone: correct base_path, or export it there",
            f"{file}: toy has no version 5 in {folder}/toy: correct base_path or specific, or "
            "export it there",
            f"{file}: toy labels version 4 new, which it does not serve: add it to specific "
            "{ versions }, or correct version_labels",
        ]


@for_each(
    "config message",
    ("models {", "configures no models"),
    ("model_config_list { config { base_path: 'a' } }", "a model has no name"),
    ("model_config_list { config { name: 'a' } config { name: 'a' } }", "several models a"),
    ("", "contains no models"),
)
def test_a_bad_models_config_is_refused(config, message, tmp_path):
    (tmp_path / "models.config").write_text(config)
    refused(message, asyncio.run, Models(tmp_path / "models.config").start())
    refused("contains no models", asyncio.run, Models(tmp_path / "absent").start())


async def test_closing_finishes_what_was_accepted(toys):
    models = Models(toys)
    await models.start()
    requests = [asyncio.create_task(predict(models)) for _ in range(20)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(models.close())
    await asyncio.sleep(0)
    with pytest.raises(ServingError, match="stopping"):
        await predict(models)
    await closing
    assert all(request.done() for request in requests)
    for request in requests:
        assert request.result()["length"].tolist() == [8, 4]
    assert states(models) == {1: State.END}


@for_each("source name", ("", "toy"), ("toy", "default"), ("models.config", "toy"))
async def test_a_model_whose_folder_is_moved_away_stays_loaded(folder, source, name):
    """A folder of one model is served under a name of its own."""
    configure(folder, entry())
    async with running(models := Models(folder / source, name="default", poll_seconds=3600)):
        assert models.names == [name]
        (folder / "toy").rename(folder.with_name("away"))
        await look(models)
        assert states(models, name) == {1: State.AVAILABLE}
        await predict(models, name)
        (folder / "toy").mkdir()  # without versions: nothing is to be served
        await look(models)
        await until(lambda: states(models, name) == {1: State.END})


async def test_metrics_forget_versions_that_were_unloaded_long_ago(folder, add, monkeypatch):
    monkeypatch.setattr(models_module, "_REMEMBERED", 1)
    async with running(models := Models(folder, poll_seconds=0.02)):
        for version in (2, 3):
            add(version)
            shutil.rmtree(folder / "toy" / str(version - 1))
            await until(lambda v=version: states(models).get(v) == State.AVAILABLE)
            await until(lambda v=version: states(models).get(v - 1) == State.END)
        await until(lambda: list(states(models)) == [3, 2])
        text = models.metrics.render().decode()
        assert set(re.findall('model_path="[^"]*/toy/([0-9])"', text)) == {"2", "3"}
