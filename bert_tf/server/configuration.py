"""The files that configure a server, in TensorFlow Serving's text formats."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, message_factory, text_format, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from tensorflow_serving.config.model_server_config_pb2 import ModelConfig, ModelServerConfig

from bert_tf.errors import InputError

_LARGEST = 2**31 - 1
_FROM_ZERO = ("batch_timeout_micros", "num_batch_threads")


@dataclasses.dataclass(frozen=True)
class BatchingParameters:
    """How requests are joined, with TensorFlow Serving's names and meaning."""

    max_batch_size: int = 32
    batch_timeout_micros: int = 0  # 0 joins those that wait for a thread: best on CPUs
    max_enqueued_batches: int = 64
    num_batch_threads: int = 0  # 0 for one per core
    allowed_batch_sizes: tuple[int, ...] = ()  # rising; if given, batches are filled up to one

    def __post_init__(self) -> None:
        for name in ("max_batch_size", "max_enqueued_batches", *_FROM_ZERO):
            value = getattr(self, name)
            least = int(name not in _FROM_ZERO)
            if not least <= value <= _LARGEST:
                raise ValueError(f"{name} is {value}: give at least {least}")
        sizes = list(self.allowed_batch_sizes)
        is_rising = sizes == sorted({size for size in sizes if size > 0})
        if sizes and not (is_rising and sizes[-1] == self.max_batch_size):
            raise ValueError(
                f"allowed_batch_sizes is {sizes}: give rising sizes of which the last is "
                f"max_batch_size ({self.max_batch_size})"
            )

    def overridden(self, fields: Mapping[str, Any]) -> "BatchingParameters":
        """These with other values of some fields; another size ends the list of sizes."""
        sizes = {"allowed_batch_sizes": ()} if "max_batch_size" in fields else {}
        return dataclasses.replace(self, **{**sizes, **fields})


# The protobuf messages that tensorflow-serving-api lacks. Requests of unlike shapes are never
# joined here, so there is nothing to pad.
_DESCRIPTOR = """
  name: "bert_tf/server.proto" package: "bert_tf" syntax: "proto3"
  dependency: "google/protobuf/wrappers.proto"
  message_type {
    name: "BatchingParameters"
    field { number: 1 name: "max_batch_size" type_name: ".google.protobuf.Int64Value" }
    field { number: 2 name: "batch_timeout_micros" type_name: ".google.protobuf.Int64Value" }
    field { number: 3 name: "max_enqueued_batches" type_name: ".google.protobuf.Int64Value" }
    field { number: 4 name: "num_batch_threads" type_name: ".google.protobuf.Int64Value" }
    field { number: 5 name: "thread_pool_name" type_name: ".google.protobuf.StringValue" }
    field { number: 6 name: "allowed_batch_sizes" label: LABEL_REPEATED type: TYPE_INT64 }
    field { number: 7 name: "pad_variable_length_inputs" type: TYPE_BOOL }
  }
  message_type {
    name: "MonitoringConfig"
    field { number: 1 name: "prometheus_config" type_name: ".bert_tf.PrometheusConfig" }
  }
  message_type {
    name: "PrometheusConfig"
    field { number: 1 name: "enable" type: TYPE_BOOL }
    field { number: 2 name: "path" type: TYPE_STRING }
  }
"""
_POOL = DescriptorPool()
_POOL.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
_POOL.Add(text_format.Parse(_DESCRIPTOR, descriptor_pb2.FileDescriptorProto()))
_BATCHING, _MONITORING = (
    message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"bert_tf.{name}"))
    for name in ("BatchingParameters", "MonitoringConfig")
)


@contextlib.contextmanager
def _read(path: str | Path, message: Any, wrong: str) -> Iterator[None]:
    """Fills a message from a file of text; in the block a ValueError refuses its content."""
    try:
        text_format.Parse(Path(path).read_text(encoding="utf-8"), message)
        yield
    except (OSError, ValueError, text_format.ParseError) as error:
        raise InputError(f"{path} {wrong} ({error}): correct it") from error


def read_batching_parameters(
    path: str | Path, defaults: BatchingParameters | None = None
) -> BatchingParameters:
    """Reads a batching parameters file; fields that it omits are as in `defaults`."""
    message = _BATCHING()
    with _read(path, message, "has no batching parameters"):
        values = {
            field.name: getattr(message, field.name).value
            for field in dataclasses.fields(BatchingParameters)[:4]
            if message.HasField(field.name)
        }
        if message.allowed_batch_sizes:
            values["allowed_batch_sizes"] = tuple(message.allowed_batch_sizes)
        return dataclasses.replace(defaults or BatchingParameters(), **values)


def read_metrics_path(path: str | Path, default: str) -> str | None:
    """Path of the metrics that a monitoring.config gives; None if it switches them off."""
    config: Any = _MONITORING()
    with _read(path, config, "configures no metrics"):
        url_path = config.prometheus_config.path or default
        if not url_path.startswith("/") or set("{}?#") & set(url_path):
            raise ValueError(f"path {url_path!r} is no path of a URL")
    return url_path if config.prometheus_config.enable else None


def read_models_config(path: str | Path) -> list[ModelConfig]:
    """Reads the models of a models.config; a relative base_path is relative to the file's folder.

    `bert-tf export` writes a container's paths, /models/NAME. Where there is no such folder, NAME
    beside the file is taken.
    """
    path = Path(path)
    config = ModelServerConfig()
    with _read(path, config, "configures no models"):
        models = config.model_config_list.config
        times = Counter(model.name for model in models)
        for model in models:
            if not model.name:
                raise ValueError("a model has no name")
            if times[model.name] > 1:
                raise ValueError(f"there are several models {model.name}")
            if model.model_platform not in ("", "tensorflow"):
                raise ValueError(f"{model.name} has the model_platform {model.model_platform}")
            if not model.base_path:
                raise ValueError(f"{model.name} has no base_path")
            folder = path.parent.absolute()
            base_path, beside = folder / model.base_path, folder / Path(model.base_path).name
            use_beside = beside.is_dir() and not base_path.is_dir()
            model.base_path = str(beside if use_beside else base_path)
    if not models:
        raise InputError(f"{path} contains no models: add one, as in saved_models/models.config")
    return list(models)
