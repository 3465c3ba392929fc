"""The small files of a model directory: their names, and how they are read."""

import errno
import json
import stat
from pathlib import Path
from typing import Any

from bert_tf.errors import InputError
from bert_tf.files.atomic import StrPath

CONFIG = "config.json"
VOCABULARY = "vocab.txt"
TOKENIZER_JSON = "tokenizer.json"  # replaces vocab.txt in newer directories of Hugging Face
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP, ADDED_TOKENS = "special_tokens_map.json", "added_tokens.json"  # in older ones
TOKENIZER = (VOCABULARY, TOKENIZER_JSON, TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
TASK_FILE = "task.json"  # columns, length and task, which fine-tuning keeps beside a model
# Of sentence-transformers.
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
SENTENCE_CONFIG = "sentence_bert_config.json"

_MOST_BYTES = 100 * 1000**2


def read_small_file(path: Path) -> bytes:
    """Reads a whole file; OSError for a device, a pipe or a huge file."""
    status = path.stat()
    is_special = not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode))
    if is_special or status.st_size > _MOST_BYTES:
        raise OSError(errno.EINVAL, f"not a regular file of at most {_MOST_BYTES // 1000**2} MB")
    return path.read_bytes()


def read_json(path: StrPath, kind: type = dict) -> Any:
    """Reads a file of a model directory; InputError unless it holds a JSON object, or a list."""
    path = Path(path)
    try:
        values = json.loads(read_small_file(path).decode("utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path} does not exist: give a model directory, which holds {path.name}."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:  # also text that is not UTF-8
        raise InputError(f"{path} is not JSON ({error}): restore the file.") from None
    if not isinstance(values, kind):
        form = "object" if kind is dict else "list"
        raise InputError(f"{path} holds no JSON {form}: restore the file.")
    return values
