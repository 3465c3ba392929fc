"""The peer for pre-training data: the data script of TensorFlow's Model Garden.

It is the original's `create_pretraining_data.py`, kept alive for TensorFlow 2. It runs in a virtual
environment of its own, `.venv-model-garden`, on the same TensorFlow.
"""

from pathlib import Path

from peers import environment  # benchmarks/peers.py

# Runs the script as `python -m` would, its log included, and prints the seconds of its work,
# excluding start-up.
_TIMED = """
import sys, time
from absl import flags, logging
from official.nlp.data import create_pretraining_data as script
flags.FLAGS(sys.argv)
logging.use_absl_handler()
logging.set_verbosity(logging.INFO)
begun = time.perf_counter()
script.main(None)
print("seconds of work:", time.perf_counter() - begun)
"""

# Reads files of instances with Model Garden's loader and saves everything it yields, in order.
_LOADED = """
import sys
import numpy as np
from official.nlp.data import pretrain_dataloader
output, max_seq_length, max_predictions_per_seq, *files = sys.argv[1:]
loader = pretrain_dataloader.BertPretrainDataLoader(
    pretrain_dataloader.BertPretrainDataConfig(
        input_path=files, global_batch_size=1, is_training=False, drop_remainder=False,
        seq_length=int(max_seq_length), max_predictions_per_seq=int(max_predictions_per_seq),
        cycle_length=1, deterministic=True,
    )
)
batches = list(loader.load().as_numpy_iterator())
np.savez(output, **{name: np.concatenate([b[name] for b in batches]) for name in batches[0]})
"""


def peer_python(given: Path | None) -> Path:
    """A Python with Model Garden: `given`, or that of .venv-model-garden, made if missing."""
    return given or Path(environment("model-garden"))


def data_script(
    python: Path,
    files: list[Path],
    output: Path,
    vocabulary: Path,
    *,
    dupe_factor: int = 1,
    max_seq_length: int = 128,
    max_predictions_per_seq: int = 20,
) -> list[str]:
    """Command that makes instances from `files` and writes them to the file `output`."""
    return [
        str(python), "-c", _TIMED,
        f"--input_file={','.join(map(str, files))}",
        f"--output_file={output}",
        f"--vocab_file={vocabulary}",
        f"--dupe_factor={dupe_factor}",
        f"--max_seq_length={max_seq_length}",
        f"--max_predictions_per_seq={max_predictions_per_seq}",
    ]  # fmt: skip


def loaded_by_peer(
    python: Path,
    files: list[Path],
    output: Path,
    *,
    max_seq_length: int,
    max_predictions_per_seq: int,
) -> list[str]:
    """Command that reads files of instances and saves them to `output`, an .npz file."""
    return [
        str(python), "-c", _LOADED, str(output), str(max_seq_length),
        str(max_predictions_per_seq), *map(str, files),
    ]  # fmt: skip
