"""SavedModels for TensorFlow Serving: `saved_models/<name>/<version>/`."""

import contextlib
import errno
import fcntl
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import tensorflow as tf

from bert_tf.atomic import hold_output, replace_directory
from bert_tf.errors import InputError
from bert_tf.serving.checks import refuse_unservable
from bert_tf.serving.model_card import CARD_FILE, model_card
from bert_tf.serving.saved_model import LoadedModel
from bert_tf.serving.server_files import BATCHING_FILE, batching_parameters, list_model
from bert_tf.serving.signatures import RawTextModel
from bert_tf.serving.warmup_requests import WARMUP_FILE, check_requests, requests, write_requests

_log = logging.getLogger(__name__)

# Files here travel with a SavedModel; a server reads none but those that it knows by name.
ASSETS = "assets.extra"
_LARGEST = 2**63 - 1  # versions are int64 in TensorFlow Serving


def versions(directory: str | Path) -> list[int]:
    """The versions under `saved_models/<name>`, the newest last."""
    found = Path(directory).glob("*")
    return sorted(int(path.name) for path in found if path.name.isdecimal() and path.is_dir())


def check_export(name: str, *, root: str | Path, version: int) -> None:
    """Raises InputError for a name or version that cannot be used; 0 is the next free one."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InputError(f"{name!r} cannot name a served model: use letters, digits, . _ and -")
    existing = versions(Path(root) / name)
    following = max(existing, default=0) + 1
    if not 0 <= (version or following) <= _LARGEST or version in existing:
        raise InputError(
            f"{Path(root) / name / str(version or following)} cannot be written: give --version a "
            f"free positive number up to {_LARGEST}, or leave it out for {following}"
        )


def export(
    module: RawTextModel,
    name: str,
    *,
    root: str | Path = "saved_models",
    version: int = 0,
    assets: Mapping[str, str] | None = None,
    facts: Mapping[str, str] | None = None,
) -> Path:
    """Writes `module` as `<root>/<name>/<version>/`, completely or not at all; returns the folder.

    The version holds warm-up requests, each of which has been run, `batching_params.pbtxt`, a
    model card with `facts` (subject -> text) and `assets` (file name -> text). The version 0 is
    the one after the newest; concurrent exports of one name get a version each.
    `<root>/models.config` lists the model.

    Raises:
        InputError: the name or version cannot be used, the graph holds what no released TensorFlow
            Serving runs, or a signature fails a warm-up request.
        OSError: the disk is full.
    """
    check_export(name, root=root, version=version)
    directory = Path(root) / name
    with _alone_in(directory):
        check_export(name, root=root, version=version)  # again: another export may have ended
        version = version or max(versions(directory), default=0) + 1
        with replace_directory(directory / str(version)) as temporary, _full_disk_errors():
            tf.saved_model.save(module, str(temporary), signatures=module.signatures())
            refuse_unservable(temporary)
            _set_method_names(temporary, module.method_names)
            for file, text in (assets or {}).items():
                (temporary / ASSETS).mkdir(exist_ok=True)
                (temporary / ASSETS / file).write_text(text, encoding="utf-8")
            _prepare_for_servers(temporary, name, module, facts or {})
    with _alone_in(Path(root)):
        if not list_model(root, name):
            _log.warning("%s/models.config has no model_config_list: add %s yourself", root, name)
    return directory / str(version)


def _set_method_names(directory: Path, method_names: Mapping[str, str]) -> None:
    """Writes the APIs that signatures are for; `tf.saved_model.save` knows predict alone."""
    if method_names:
        updater = tf.compat.v1.saved_model.signature_def_utils.MethodNameUpdater(str(directory))
        for signature_name, method_name in method_names.items():
            updater.replace_method_name(signature_name, method_name)
        updater.save()


def _prepare_for_servers(
    directory: Path, name: str, module: RawTextModel, facts: Mapping[str, str]
) -> None:
    """Runs the warm-up requests as a server will, and writes the files that go with a version."""
    model = LoadedModel(directory)
    try:
        made = list(requests(model.signatures, module.tokenizer, module.positions))
        check_requests(model, made)
    finally:
        model.close()
    write_requests(directory / ASSETS / WARMUP_FILE, name, made)
    if parameters := batching_parameters(model.signatures):
        (directory / BATCHING_FILE).write_text(parameters, encoding="utf-8")
    card = model_card(name, facts, model.signatures)
    (directory / CARD_FILE).write_text(card, encoding="utf-8")


@contextlib.contextmanager
def _alone_in(directory: Path) -> Iterator[None]:
    """Holds the folder's lock; what a killed export left in it is removed."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        with hold_output(directory):
            yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _full_disk_errors() -> Iterator[None]:
    try:
        yield
    except tf.errors.OpError as error:
        if "No space left" in str(error) or "quota exceeded" in str(error):
            raise OSError(errno.ENOSPC, error.message) from error
        raise
