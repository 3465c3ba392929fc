"""Models by name: a local folder, or a model of the Hugging Face hub, cached or downloaded."""

import difflib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from huggingface_hub import constants

from bert_tf.checkpoints.weights_files import H5, INDEX, PICKLE, WEIGHTS, WEIGHTS_FILES
from bert_tf.config import refuse_other_classes
from bert_tf.errors import InputError, nearest
from bert_tf.files.atomic import StrPath
from bert_tf.files.model_files import CONFIG, TOKENIZER, TOKENIZER_JSON, VOCABULARY, read_json

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

# What is downloaded besides config.json, which comes last.
_FILES = [
    *TOKENIZER,
    *(WEIGHTS, INDEX, "model-*-of-*.safetensors"),
    # Of sentence-transformers: pooling, length, prompts, a dense layer.
    *("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"),
    *("[0-9]_*/config.json", f"[0-9]_*/{WEIGHTS}"),
]
# ORG/NAME, ORG/NAME@REVISION or hf://ORG/NAME, by the hub's rules for names.
_PART = r"\w(?:[\w.-]{0,94}\w)?"
_NAME = re.compile(
    rf"(?P<prefix>hf://)?(?P<repository>(?:{_PART}/)?{_PART})(?:@(?P<revision>[\w.][\w./-]*))?",
    re.ASCII,
)
_ANSWER_SECONDS = 30


@dataclass(frozen=True)
class HubModel:
    repository: str  # such as google-bert/bert-base-uncased
    revision: str = "main"  # a branch, a tag or a commit

    def __str__(self) -> str:
        return self.repository + f"@{self.revision}" * (self.revision != "main")

    @property
    def url(self) -> str:
        """The page that lists the files."""
        return f"{_endpoint()}/{self.repository}/tree/{self.revision}"

    def unavailable(self, message: str) -> InputError:
        """The error of a model that is neither here nor can be downloaded."""
        error = InputError(message)
        cached = Path(constants.HF_HUB_CACHE).glob("models--*")
        names = [folder.name.removeprefix("models--").replace("--", "/") for folder in cached]
        if near := nearest(self.repository, names):
            error.add_note(f"Did you mean {near}, which is cached?")
        error.add_note(
            f"Without a network: download {CONFIG}, {WEIGHTS} and those of {', '.join(TOKENIZER)} "
            f"that are there from {self.url} into a folder, and give that folder"
        )
        return error

    def cached(self) -> Path | None:
        """The folder of the revision in the Hugging Face cache; it may lack files."""
        from huggingface_hub import HfApi, errors

        try:
            folder = HfApi().snapshot_download(
                self.repository,
                revision=self.revision,
                allow_patterns=[CONFIG, *_FILES],
                local_files_only=True,
            )
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
            return None
        return Path(folder)


def find_model(name: StrPath) -> Path:
    """Finds the folder of a model by its path, or by its name on the Hugging Face hub.

    A local file or folder comes first, then the newest complete snapshot in the Hugging Face cache
    (`HF_HUB_CACHE`, `HF_HOME`), which needs no network. Otherwise the model is downloaded into the
    cache (`HF_ENDPOINT`, `HF_TOKEN`): configuration, tokenizer and safetensors alone; `config.json`
    comes last, so a download that stops leaves no model.

    Args:
        name: a path; or ORG/NAME, with a revision ORG/NAME@REVISION. If the first part is the name
            of a local folder, or nearly so, ORG/NAME is a path. hf://ORG/NAME never is.

    Returns:
        The folder; a path that does not exist, and is no name on the hub, is returned as it is.

    Raises:
        InputError: the model cannot be downloaded, or is no BERT in safetensors.
    """
    path = Path(name)
    match = _NAME.fullmatch(name) if isinstance(name, str) else None
    if match is None or ".." in match[0] or (not match["prefix"] and path.exists()):
        return path
    model = HubModel(match["repository"], match["revision"] or "main")
    folder = model.cached()
    missing = None if folder is None else _missing(folder)
    if folder is not None and not missing:
        return folder
    if folder is None and not match["prefix"] and _is_path(path):
        return path
    absent = (
        f"in the Hugging Face cache without {' and '.join(missing)}" if missing else "not cached"
    )
    return _download(model, f"{model} is no folder here, is {absent}")


def hub_hint(name: str) -> str:
    """A hint for an error about a missing path: how to name a model of the hub."""
    match = _NAME.fullmatch(name)
    return f", or for a model of the Hugging Face hub give hf://{name}" if match else ""


def _is_path(path: Path) -> bool:
    """Whether a name that does not exist is a mistyped path rather than a name on the hub."""
    if len(path.parts) == 1:
        return True
    names = (entry.name for entry in Path().iterdir())
    return bool(difflib.get_close_matches(path.parts[0], names, n=1, cutoff=0.8))


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _missing(folder: Path) -> list[str]:
    """Files missing from a snapshot: other programs cache single files, and downloads stop."""
    weights = next((name for name in WEIGHTS_FILES if (folder / name).is_file()), WEIGHTS)
    needed = [CONFIG, weights]
    if weights.endswith(".index.json"):
        listed = read_json(folder / weights).get("weight_map")
        shards = listed.values() if isinstance(listed, dict) else ()
        needed += sorted({str(shard) for shard in shards})
    missing = [name for name in needed if not (folder / name).is_file()]
    has_vocabulary = any((folder / name).is_file() for name in (VOCABULARY, TOKENIZER_JSON))
    return missing if has_vocabulary else [*missing, VOCABULARY]


def _download(model: HubModel, absent: str) -> Path:
    """Downloads a model into the cache; `absent` begins an error: where the model is not."""
    if constants.HF_HUB_OFFLINE:
        raise model.unavailable(f"{absent}, and HF_HUB_OFFLINE forbids a download: unset it")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

    hub = HfApi(endpoint=_endpoint())
    try:
        info = hub.model_info(model.repository, revision=model.revision, timeout=_ANSWER_SECONDS)
        _check_is_bert(model, info)
        hub.snapshot_download(model.repository, revision=info.sha, allow_patterns=_FILES)
        # Only a file that is downloaded by its revision enters that into the cache.
        config = hub.hf_hub_download(model.repository, CONFIG, revision=model.revision)
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the disk
        # Where a file cannot be had, the client says that it is not cached; the cause is why.
        cause = (error.__cause__ if isinstance(error, LocalEntryNotFoundError) else None) or error
        reason = " ".join(f"{type(cause).__name__}: {cause}".split())
        if type(cause) is RepositoryNotFoundError:  # its text is a paragraph
            reason = "no such model, or a private one"
        raise model.unavailable(
            f"{absent}, and cannot be downloaded from {_endpoint()} ({reason}): check the name and "
            "the network; for a private or gated model log in (hf auth login, or HF_TOKEN)"
        ) from error
    folder = Path(config).parent
    if missing := [name for name in _missing(folder) if name != VOCABULARY]:
        raise InputError(
            f"{model} lacks {' and '.join(missing)}, or changed while it was downloaded: try again"
        )
    return folder


def _check_is_bert(model: HubModel, info: "ModelInfo") -> None:
    """Refuses, before a download, what is no BERT in safetensors."""
    files = {file.rfilename for file in info.siblings or ()}
    kind = str((info.config or {}).get("model_type", "bert"))
    # Own kinds have names such as bert_recurrent.
    if kind.partition("_")[0] not in ("bert", "distilbert"):
        raise InputError(
            f"{model} is a model of type {kind}, and only bert and distilbert are supported: give "
            "a BERT"
        )
    try:
        refuse_other_classes(info.config or {})
    except InputError as error:
        raise InputError(f"{model}: {error}") from None
    if CONFIG not in files:
        raise InputError(f"{model} holds no {CONFIG} ({model.url}): give a BERT for transformers")
    if not {WEIGHTS, INDEX} & files:
        cure = "give a repository or a revision with safetensors"
        if other := next((name for name in (H5, PICKLE) if name in files), None):
            cure += (
                f" (often that of a pull request, such as {model.repository}@refs/pr/1), or "
                f"download {CONFIG}, {VOCABULARY} and {other} from {model.url} into a folder, "
                "and give that folder"
            )
        if other == PICKLE:
            cure += ": the error, as pickles can run code, shows how PyTorch writes safetensors"
        raise InputError(f"{model} holds no {WEIGHTS}: {cure}")
