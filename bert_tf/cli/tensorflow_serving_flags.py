"""Flags of tensorflow_model_server as options of `bert-tf serve`: a command line moves over."""

from collections.abc import Sequence

from bert_tf.errors import InputError

# Flags by our names; those for "" name the models.
_RENAMED = {
    "rest_api_port": "rest_port", "port": "grpc_port",
    "model_base_path": "", "model_config_file": "",
}  # fmt: skip
_SWITCHES = ("enable_per_model_batching_parameters",)  # which take a value there
# How `bert-tf serve` always works, whatever the value of a number of seconds or of retries.
_ALWAYS = ("enable_batching", "enable_model_warmup", "allow_version_labels_for_unavailable_models")
_UNNEEDED = (
    "model_config_file_poll_wait_seconds", "file_system_poll_wait_seconds",
    "max_num_load_retries", "load_retry_interval_micros",
)  # fmt: skip
_DEFAULT_NAME = "default"  # of --model_base_path without --model_name


def translated(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command line with the flags of tensorflow_model_server replaced.

    Raises InputError for a flag whose value this server cannot follow.
    """
    given = [*arguments]
    found: list[str] = []
    names_models: list[str] = []
    while given:
        argument = given.pop(0)
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--") if flag.startswith("--") else ""
        is_off = value.lower() in ("false", "0")
        if name in _SWITCHES:
            found.append(f"--no_{name}" if is_off else flag)
        elif name in _ALWAYS:
            if is_off:
                raise InputError(f"{flag} cannot be switched off in bert-tf serve: leave it out")
        elif name in _RENAMED or name in _UNNEEDED or name == "rest_api_timeout_in_ms":
            if not equals:
                if not given:
                    raise InputError(f"{flag} needs a value")
                value = given.pop(0)
            if name == "rest_api_timeout_in_ms":
                if not value.isdecimal():
                    raise InputError(f"{flag} {value} is not a whole number: correct it")
                found.append(f"--deadline={int(value) / 1000}")
            elif _RENAMED.get(name):
                found.append(f"--{_RENAMED[name]}={value}")
            elif name in _RENAMED:
                names_models.append(flag)
                found.append(value)
        else:
            found.append(argument)
    if len(names_models) > 1:
        raise InputError(f"{' and '.join(names_models)} cannot be combined: give one of them")
    is_named = any(each.partition("=")[0] == "--model_name" for each in found)
    if names_models == ["--model_base_path"] and not is_named:
        found.append(f"--model_name={_DEFAULT_NAME}")
    return found
