"""Servables: the versions of models that a server has loaded, found by name, version or label."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import grpc
import numpy as np
from tensorflow.core.protobuf.meta_graph_pb2 import SignatureDef
from tensorflow_serving.apis.get_model_metadata_pb2 import (
    GetModelMetadataResponse,
    SignatureDefMap,
)
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusResponse, ModelVersionStatus

from bert_tf.serving.export import versions
from bert_tf.serving.server.errors import ServingError
from bert_tf.serving.server.saved_model import LoadedModel


class Servable:
    """One loaded version of a model. It stays loaded while a request holds it.

    Attributes:
        name: the model's name.
        version: the version's number.
        directory: the version's folder.
        signatures: signature name -> SignatureDef, which has the type, shape and tensor name of
            each input and output.
    """

    def __init__(self, name: str, version: int, directory: Path) -> None:
        self.name = name
        self.version = version
        self.directory = directory
        self._model = LoadedModel(directory)
        self.signatures: Mapping[str, SignatureDef] = self._model.signatures

    def signature(self, signature_name: str) -> SignatureDef:
        """The signature of this name; an empty one means `serving_default`.

        Raises:
            ServingError: there is none (INVALID_ARGUMENT).
        """
        try:
            return self.signatures[signature_name or "serving_default"]
        except KeyError:
            message = f'Serving signature name: "{signature_name}" not found in signature def'
            raise ServingError(grpc.StatusCode.INVALID_ARGUMENT, message) from None

    async def predict(
        self,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        deadline: float | None = None,
    ) -> dict[str, np.ndarray]:
        """Runs a signature, joined with other requests where that pays.

        Args:
            signature_name: the signature; an empty name means `serving_default`.
            inputs: input name -> array of the signature's type and rank, batch first. Strings are
                bytes in an array of objects.
            deadline: moment of `time.monotonic()` by which the answer is wanted; None for none.

        Returns:
            Output name -> array, batch first; strings are bytes in arrays of objects.

        Raises:
            ServingError: INVALID_ARGUMENT for inputs that the signature does not take,
                RESOURCE_EXHAUSTED for a full queue, DEADLINE_EXCEEDED, UNAVAILABLE once the server
                stops.
        """
        self.signature(signature_name)
        name = signature_name or "serving_default"
        return await asyncio.to_thread(self._model.run, name, inputs)


class Models:
    """The models of a server.

        models = Models("saved_models")
        async with models.running():
            outputs = await models.predict(
                "classifier", None, None, "", {"text": np.array([b"a text"], object)}
            )

    Args:
        folder: folder whose subfolders with numbered versions are the models, each named for its
            folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._servables: dict[str, dict[int, Servable]] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Loads the models, then watches their folders; closes them on exit."""
        await self.start()
        try:
            yield
        finally:
            await self.close()

    async def start(self) -> None:
        """Returns when every version that is to be served first is loaded, or has failed."""
        for path in sorted(self._folder.iterdir()):
            if found := versions(path):
                newest = found[-1]
                servable = await asyncio.to_thread(Servable, path.name, newest, path / str(newest))
                self._servables[path.name] = {newest: servable}

    async def close(self, grace: float | None = None) -> None:
        """Refuses new requests with UNAVAILABLE and waits for those that have been accepted.

        Args:
            grace: seconds after which the requests that still wait fail; None waits for all.
        """

    @property
    def names(self) -> list[str]:
        """Names of all models, in alphabetical order."""
        return sorted(self._servables)

    @contextlib.contextmanager
    def servable(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> Iterator[Servable]:
        """Holds the version that a request is for: it stays loaded until the block ends.

        Args:
            name: the model.
            version: its version.
            label: a label of a version, in place of `version`. Without both, the newest version.

        Raises:
            ServingError: `Servable not found for request: Latest(foo)` or `Specific(foo, 50)`
                (NOT_FOUND), `Unrecognized servable version label: x` (INVALID_ARGUMENT).
        """
        if label is not None:
            message = f"Unrecognized servable version label: {label}"
            raise ServingError(grpc.StatusCode.INVALID_ARGUMENT, message)
        loaded = self._servables.get(name, {})
        chosen = max(loaded, default=None) if version is None else version
        if chosen not in loaded:
            asked = f"Latest({name})" if version is None else f"Specific({name}, {version})"
            message = f"Servable not found for request: {asked}"
            raise ServingError(grpc.StatusCode.NOT_FOUND, message)
        yield loaded[chosen]

    async def predict(
        self,
        name: str,
        version: int | None,
        label: str | None,
        signature_name: str,
        inputs: Mapping[str, np.ndarray],
        deadline: float | None = None,
    ) -> dict[str, np.ndarray]:
        """`servable(...)` and `Servable.predict` in one: their arguments and errors."""
        with self.servable(name, version, label) as servable:
            return await servable.predict(signature_name, inputs, deadline)

    def status(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> GetModelStatusResponse:
        """The state of each version of a model, or of one, as ModelService reports it.

        Raises:
            ServingError: `Could not find any versions of model foo` or `Could not find version 9
                of model foo` (NOT_FOUND), or as `servable` for a label.
        """
        loaded = self._servables.get(name, {})
        asked = sorted(loaded, reverse=True) if version is None else [version]
        if not loaded or (version is not None and version not in loaded):
            which = f"version {version}" if version is not None else "any versions"
            message = f"Could not find {which} of model {name}"
            raise ServingError(grpc.StatusCode.NOT_FOUND, message)
        states = [
            ModelVersionStatus(version=number, state=ModelVersionStatus.AVAILABLE)
            for number in asked
        ]
        return GetModelStatusResponse(model_version_status=states)

    def metadata(
        self, name: str, version: int | None = None, label: str | None = None
    ) -> GetModelMetadataResponse:
        """The signatures of a version, in `metadata["signature_def"]`.

        Raises:
            ServingError: as `servable`.
        """
        with self.servable(name, version, label) as servable:
            response = GetModelMetadataResponse()
            response.model_spec.name = name
            response.model_spec.version.value = servable.version
            signatures = SignatureDefMap(signature_def=servable.signatures)
            response.metadata["signature_def"].Pack(signatures)
            return response
