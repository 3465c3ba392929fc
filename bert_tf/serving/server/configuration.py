"""The files that configure a server, in TensorFlow Serving's text formats."""

import dataclasses
from collections import Counter
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from google.protobuf import wrappers_pb2 as _wrappers
from tensorflow_serving.config.model_server_config_pb2 import ModelServerConfig

from bert_tf.errors import InputError

PARAMETERS_FILE = "batching_params.pbtxt"
_LARGEST = 2**31 - 1


@dataclasses.dataclass(frozen=True)
class BatchingParameters:
    """How requests are joined; names and meaning as in TensorFlow Serving's BatchingParameters.

    Attributes:
        max_batch_size: most rows of a batch, and of a request.
        batch_timeout_micros: longest wait for more requests, in microseconds. 0 joins those that
            wait when a thread is free, which is best on CPUs.
        max_enqueued_batches: batches' worth of rows that may wait; more are refused.
        num_batch_threads: batches that run at once; 0 for one per core.
        allowed_batch_sizes: if given, batches are filled up to one of these, in rising order.
    """

    max_batch_size: int = 32
    batch_timeout_micros: int = 0
    max_enqueued_batches: int = 64
    num_batch_threads: int = 0
    allowed_batch_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Checks the ranges.

        Raises:
            ValueError: a value is out of range.
        """
        least = {"max_batch_size": 1, "max_enqueued_batches": 1}
        for field in dataclasses.fields(self)[:4]:
            value, bound = getattr(self, field.name), least.get(field.name, 0)
            if not bound <= value <= _LARGEST:
                raise ValueError(f"{field.name} is {value}: give at least {bound}")
        sizes = self.allowed_batch_sizes
        if sizes and (
            list(sizes) != sorted(set(sizes)) or sizes[0] < 1 or sizes[-1] != self.max_batch_size
        ):
            raise ValueError(
                f"allowed_batch_sizes is {list(sizes)}: give rising sizes of which the last is "
                f"max_batch_size ({self.max_batch_size})"
            )


def _batching_message() -> type:
    """The protobuf message BatchingParameters, which tensorflow-serving-api lacks."""
    file = descriptor_pb2.FileDescriptorProto(
        name="bert_tf/batching_parameters.proto",
        package="bert_tf",
        syntax="proto3",
        dependency=[_wrappers.DESCRIPTOR.name],
    )
    message = file.message_type.add(name="BatchingParameters")
    single, repeated = 1, 3  # labels of fields
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, wrapper) in enumerate(
        {
            "max_batch_size": "Int64Value",
            "batch_timeout_micros": "Int64Value",
            "max_enqueued_batches": "Int64Value",
            "num_batch_threads": "Int64Value",
            "thread_pool_name": "StringValue",
        }.items(),
        start=1,
    ):
        type_name = f".google.protobuf.{wrapper}"
        message.field.add(
            name=name, number=number, label=single, type=kinds.TYPE_MESSAGE, type_name=type_name
        )
    message.field.add(name="allowed_batch_sizes", number=6, label=repeated, type=kinds.TYPE_INT64)
    # Requests of unlike shapes are never joined here, so there is nothing to pad.
    message.field.add(
        name="pad_variable_length_inputs", number=7, label=single, type=kinds.TYPE_BOOL
    )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(_wrappers.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    found = pool.FindMessageTypeByName("bert_tf.BatchingParameters")
    return message_factory.GetMessageClass(found)


_MESSAGE = _batching_message()


def read_batching_parameters(
    path: str | Path, defaults: BatchingParameters | None = None
) -> BatchingParameters:
    """Reads a batching parameters file; what it leaves out is as in `defaults`.

    Raises:
        InputError: the file cannot be read, is in another format or has a value out of range.
    """
    message = _MESSAGE()
    try:
        text_format.Parse(Path(path).read_text(encoding="utf-8"), message)
        given = {
            field.name: getattr(message, field.name).value
            for field in dataclasses.fields(BatchingParameters)[:4]
            if message.HasField(field.name)
        }
        if message.allowed_batch_sizes:
            given["allowed_batch_sizes"] = tuple(message.allowed_batch_sizes)
        return dataclasses.replace(defaults or BatchingParameters(), **given)
    except (OSError, ValueError, text_format.ParseError) as error:
        raise InputError(f"{path} has no batching parameters ({error}): correct it") from error


def read_models_config(path: str | Path) -> ModelServerConfig:
    """Reads a models.config; a relative base_path is relative to the file's folder.

    Raises:
        InputError: the file cannot be read, is in another format, or names no model or one twice.
    """
    path, config = Path(path), ModelServerConfig()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), config)
        for model in config.model_config_list.config:
            if model.base_path:
                model.base_path = str(path.parent.absolute() / model.base_path)
        _check_models_config(config)
    except (OSError, ValueError, text_format.ParseError) as error:
        raise InputError(f"{path} configures no models ({error}): correct it") from error
    if not config.model_config_list.config:
        raise InputError(f"{path} names no model: add one, as in saved_models/models.config")
    return config


def _check_models_config(config: ModelServerConfig) -> None:
    """Refuses what no server can follow, in TensorFlow Serving's words.

    Raises:
        ValueError: a model has no name, is listed twice, is not TensorFlow's or has no absolute
            path.
    """
    models = config.model_config_list.config
    for name, times in Counter(model.name for model in models).items():
        if not name:
            raise ValueError("ModelConfig has no name specified.")
        if times > 1:
            raise ValueError(f"Illegal to list model {name} multiple times in config")
    for model in models:
        if model.model_platform not in ("", "tensorflow"):
            raise ValueError(
                f"Model {model.name} requests unsupported platform {model.model_platform}"
            )
        if not Path(model.base_path).is_absolute():
            raise ValueError(
                f"Expected model {model.name} to have an absolute path or URI; got "
                f"base_path()={model.base_path}"
            )
