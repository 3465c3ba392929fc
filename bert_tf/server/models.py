"""Servables: the versions of models that a server has loaded, found by name, version or label."""

import asyncio
import contextlib
import dataclasses
import functools
import gc
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from grpc import StatusCode
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse, ModelVersionStatus
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig

from bert_tf.errors import InputError
from bert_tf.server.batching import Workers
from bert_tf.server.configuration import BatchingParameters, read_models_config
from bert_tf.server.errors import ServingError, invalid
from bert_tf.server.monitoring import Metrics
from bert_tf.server.servable import Servable
from bert_tf.serving.engines import Engine, fastest_version
from bert_tf.serving.precisions import versions
from bert_tf.tasks.signatures import Step, no_step

_LOG = logging.getLogger(__name__)

# Versions that were unloaded and are still reported as such, per model.
_REMEMBERED = 16


class Models:
    """The models of a server. All methods belong to the thread of one event loop.

    New versions are found by polling, loaded and warmed up while the old one serves, then take
    over; the old one is unloaded after its last request. The same happens to versions whose folder
    or files have changed. A version that fails to load is tried again once its files change. A
    model whose whole folder disappears stays loaded, as in TensorFlow Serving.

    `source` is a folder of models (<name>/<version>), a folder of one model, which `name` names
    otherwise, or a models.config, whose changes are followed. Of a model exported in several types
    the fastest version is served, unless the file has a policy. `batching` has the number of
    threads, and defaults for what a version's `batching_params.pbtxt` omits; `overrides` replace
    fields of every version. With `refuses_truncated`, texts that do not fit are refused. `engine`
    is as of `Engines`.
    """

    def __init__(
        self,
        source: str | Path,
        *,
        name: str | None = None,
        poll_seconds: float = 1.0,
        batching: BatchingParameters | None = None,
        overrides: Mapping[str, Any] | None = None,
        refuses_truncated: bool = False,
        engine: Engine = "auto",
    ) -> None:
        self.metrics = Metrics()
        self.step: Step = no_step  # shows the first loads
        batching = batching or BatchingParameters()
        self._folder = Path(source)
        self._name = name or self._folder.resolve().name
        self._configs: Sequence[ModelConfig] | None = None  # None: one for each folder of versions
        self._complaint = ""  # about the models.config
        self._warnings: set[str] = set()  # about it and what it names, already logged
        self._poll_seconds = poll_seconds
        self._engine = engine
        self._workers = Workers(batching.num_batch_threads)
        self._servable = functools.partial(
            Servable,
            workers=self._workers,
            metrics=self.metrics,
            parameters=dataclasses.replace(batching, num_batch_threads=0),
            overrides=dict(overrides or {}),
            refuses_truncated=refuses_truncated,
            engine=engine,
        )
        # One model loads at a time, or both would need the memory of their loading at once.
        self._loader = ThreadPoolExecutor(1, "load")
        # By name, in the order of their loads: of one version the last counts, once it answers.
        self._servables: dict[str, list[Servable]] = {}
        self._wanted: dict[str, dict[int, Path]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: set[str] = set()  # models that have been complete and still answer
        self._is_started = False
        self._is_closing = False

    async def start(self) -> None:
        """Loads the first versions and begins to watch; raises InputError if none can be loaded."""
        folder = self._folder
        try:
            self._is_configured = folder.is_file()
            if self._is_configured:
                self._configs = read_models_config(folder)
            elif versions(folder):
                self._configs = [ModelConfig(name=self._name, base_path=str(folder.absolute()))]
            await self._poll()
        except OSError as error:
            raise InputError(f"{folder} cannot be read ({error}): check its permissions") from error
        if self._configs is None and not self._wanted:
            await self.close()
            raise InputError(
                f"{folder} contains no models: give a folder that `bert-tf export` wrote "
                "(<name>/<version>/saved_model.pb)"
            )
        if self._tasks:
            await asyncio.wait(self._tasks)
        failed = [f"{x.directory}: {x.error.message}" for x in self._all() if x.error]
        if failed and not self.names:
            await self.close()
            raise InputError(f"no model can be loaded ({'; '.join(failed)}): fix or replace them")
        self._is_started = True
        self._begin(self._watch())

    async def close(self) -> None:
        """Refuses new requests with UNAVAILABLE, waits for those accepted, and frees the models."""
        self._is_closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(servable.drained() for servable in self._all()))
        for servable in self._all():
            if servable.state in (ModelVersionStatus.AVAILABLE, ModelVersionStatus.UNLOADING):
                await self._in_loader(servable.unload)
        self._workers.close()
        self._loader.shutdown(wait=False, cancel_futures=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                if self._is_configured:
                    await self._follow()
                await self._poll()
            except OSError as error:  # a network's file system comes back
                _LOG.warning("checking for new models failed: %s", error)
            except Exception:  # a defect, which must not end the watch
                _LOG.exception("checking for new models failed")

    async def _follow(self) -> None:
        """Reads a models.config again; a wrong one changes nothing."""
        self._complaint = ""
        try:
            self._configs = await asyncio.to_thread(read_models_config, self._folder)
        except InputError as error:
            self._complaint = f"{error}; the models stay as they are"

    async def _poll(self) -> None:
        tried = [x for x in self._all() if x.error or x.is_available]
        known = {*self._wanted}
        is_quiet = not self._is_started
        fastest = functools.partial(fastest_version, engine=self._engine, is_quiet=is_quiet)
        look = functools.partial(_look, self._folder, self._configs, known, tried, fastest)
        wanted, changed = await asyncio.to_thread(look)
        for servable in changed:
            servable.is_outdated = True
        self._wanted |= wanted
        for name in self._wanted:
            self._settle(name)
        self.metrics.models = {name for name, versions in self._wanted.items() if versions}
        self._warn()

    def _warn(self) -> None:
        """Warns, once, of a wrong models.config, and of what it names and is not there."""
        warnings = {self._complaint} - {""}
        for model in self._configs or ():
            wanted = self._wanted.get(model.name, {})
            entry = f"{self._folder}: {model.name}"
            pinned = {*model.model_version_policy.specific.versions}
            if not wanted or not pinned <= wanted.keys():
                which = "".join(f" {version}" for version in sorted(pinned - wanted.keys()))
                cure = f"correct base_path{' or specific' * bool(which)}, or export it there"
                warnings.add(f"{entry} has no version{which} in {model.base_path}: {cure}")
            warnings |= {
                f"{entry} labels version {version} {label}, which it does not serve: add it to "
                "specific { versions }, or correct version_labels"
                for label, version in model.version_labels.items()
                if wanted and version not in wanted
            }
        for warning in sorted(warnings - self._warnings):
            _LOG.warning(warning)
        self._warnings = warnings

    def rows_waiting(self) -> dict[str, int]:
        return {
            name: sum(servable.rows_waiting for servable in servables)
            for name, servables in self._servables.items()
        }

    def readiness(self) -> dict[str, bool]:
        """Whether each configured model is ready.

        A model is ready once all versions that it should serve are loaded, and stays ready while
        any of them, or one that they replace, answers: a new version that fails takes no server out
        of service.
        """
        names = {name for name, wanted in self._wanted.items() if wanted}
        if self._configs is not None:
            names = {model.name for model in self._configs}
        answering = {servable.name for servable in self._all() if servable.is_available}
        complete = {
            name
            for name in names & answering
            if self.available(name).keys() >= self._wanted[name].keys()
        }
        self._ready = (self._ready | complete) & answering & names
        return {name: name in self._ready for name in sorted(names)}

    @property
    def is_ready(self) -> bool:
        """Whether requests to all configured models are answered."""
        return self._is_started and not self._is_closing and all(self.readiness().values())

    def _all(self) -> list[Servable]:
        return [servable for servables in self._servables.values() for servable in servables]

    def _newest(self, name: str) -> dict[int, Servable]:
        """The last load of each version."""
        return {servable.version: servable for servable in self._servables.get(name, ())}

    def available(self, name: str) -> dict[int, Servable]:
        """The versions that can be asked, by number."""
        return {x.version: x for x in self._servables.get(name, ()) if x.is_available}

    def _settle(self, name: str) -> None:
        """Starts to load the versions that are wanted; retires others when one of these serves."""
        wanted = self._wanted[name]
        servables = self._servables.setdefault(name, [])
        newest = self._newest(name)
        for version, directory in wanted.items():
            last = newest.get(version)
            if (
                last
                and last.directory == directory
                and not last.is_outdated
                and (last.error or last.state != ModelVersionStatus.END)
            ):
                continue
            is_quiet = not self._is_started
            newest[version] = self._servable(name, version, directory, is_quiet=is_quiet)
            servables.append(newest[version])
            self._begin(self._load(newest[version]))
        is_served = not wanted or any(newest[version].is_available for version in wanted)
        for servable in servables:
            last = newest[servable.version]
            is_wanted = servable.version in wanted
            is_replaced = servable is not last and last.is_available
            if servable.is_available and (is_replaced or (is_served and not is_wanted)):
                servable.state = ModelVersionStatus.UNLOADING
                self._begin(self._unload(servable))
        ended = [x for x in servables if x.state == ModelVersionStatus.END]
        gone = sorted((x for x in ended if x.version not in wanted), key=lambda x: x.version)
        for servable in gone[:-_REMEMBERED]:
            self.metrics.forget(str(servable.directory))
        dropped = [*gone[:-_REMEMBERED], *(x for x in ended if newest[x.version] is not x)]
        self._servables[name] = [x for x in servables if x not in dropped]

    async def _load(self, servable: Servable) -> None:
        def load() -> None:
            if not self._is_started:
                first = self._all()
                done = sum(x.is_available or x.error is not None for x in first)
                self.step(f"loading {servable.name}, version {servable.version}", done, len(first))
            servable.load()

        await self._in_loader(load)
        self._settle(servable.name)

    async def _unload(self, servable: Servable) -> None:
        await servable.drained()
        await self._in_loader(servable.unload)
        # A graph and its operations refer to each other, and may hold the weights as constants.
        await self._in_loader(gc.collect)

    async def _in_loader(self, call: Callable[[], object]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._loader, call)

    def _begin(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def names(self) -> list[str]:
        return sorted({servable.name for servable in self._all() if servable.is_available})

    def check_started(self) -> None:
        """Raises ServingError: UNAVAILABLE before the first loads are done, and at the end."""
        if self._is_closing or not self._is_started:
            reason, more = ("stopping", "") if self._is_closing else ("loading", " its models")
            raise ServingError(StatusCode.UNAVAILABLE, f"The server is {reason}{more}", reason)

    def servable(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> contextlib.AbstractContextManager[Servable]:
        """Keeps the version that a request asks for, by default the newest, loaded in a block."""
        self.check_started()
        version = self._version(name, version, label)
        available = self.available(name)
        chosen = max(available, default=-1) if version is None else version
        if chosen not in available:
            newest = self._newest(name)
            if label is not None and chosen in newest and not newest[chosen].error:
                text = f"Version {version} of {name}, which has the label {label}, is loading"
                raise ServingError(StatusCode.UNAVAILABLE, text, "loading")
            raise self._absent(name, version)
        return available[chosen].held()

    def _version(self, name: str, version: int | None, label: str | None) -> int | None:
        """The number that a request asks for, if any, by itself or by a label."""
        if not name:
            raise invalid("The request does not name a model")
        if label is None:
            return version
        labels = [x.version_labels for x in self._configs or () if x.name == name]
        if not labels or label not in labels[0]:
            raise invalid(f"{name} has no version with the label {label}")
        return int(labels[0][label])

    def status(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> GetModelStatusResponse:
        """The state of each version of a model, or of one, as ModelService reports it."""
        version = self._version(name, version, label)
        newest = self._newest(name)
        # The newest first, as TensorFlow Serving lists them.
        numbers = sorted(newest, reverse=True) if version is None else [version]
        if not newest.keys() & numbers:
            raise self._absent(name, version)
        statuses = [newest[number].status() for number in numbers]
        return GetModelStatusResponse(model_version_status=statuses)

    def _absent(self, name: str, version: int | None) -> ServingError:
        if not self._servables.get(name):
            message = f"There is no model {name}: the server has {', '.join(self.names) or 'none'}"
        elif version is None:
            message = f"No version of the model {name} is loaded: its status says why"
        else:
            loaded = ", ".join(map(str, sorted(self.available(name)))) or "none"
            message = f"There is no version {version} of the model {name}: it has {loaded}"
        return ServingError(StatusCode.NOT_FOUND, message)


def _look(
    folder: Path,
    configs: Sequence[ModelConfig] | None,
    known: set[str],
    tried: list[Servable],
    fastest: Callable[[Path], Path],
) -> tuple[dict[str, dict[int, Path]], list[Servable]]:
    """Finds name -> version -> folder to serve, and those `tried` whose files have changed."""
    wanted: dict[str, dict[int, Path]] = {}
    if configs is not None:
        wanted |= {name: {} for name in known - {model.name for model in configs}}
        for model in configs:
            folders = versions(model.base_path)
            if folders or Path(model.base_path).is_dir():
                wanted[model.name] = _chosen(model, folders, fastest)
    elif folder.is_dir():
        for path in folder.iterdir():
            if folders := versions(path):
                wanted[path.name] = _only(fastest(folders[max(folders)]))
            elif path.is_dir() and path.name in known:
                wanted[path.name] = {}
    return wanted, [servable for servable in tried if servable.has_changed()]


def _chosen(
    model: ModelConfig, folders: Mapping[int, Path], fastest: Callable[[Path], Path]
) -> dict[int, Path]:
    policy = model.model_version_policy
    choice = policy.WhichOneof("policy_choice")
    if choice is None:
        return _only(fastest(folders[max(folders)])) if folders else {}
    if choice == "specific":
        return {number: folders[number] for number in policy.specific.versions if number in folders}
    most = len(folders) if choice == "all" else policy.latest.num_versions or 1
    return {number: folders[number] for number in sorted(folders)[-most:]}


def _only(version: Path) -> dict[int, Path]:
    return {int(version.name): version}
