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
) -> list[str]:
    """Command that makes instances from `files` and writes them to the file `output`."""
    return [
        str(python),
        "-c",
        _TIMED,
        f"--input_file={','.join(map(str, files))}",
        f"--output_file={output}",
        f"--vocab_file={vocabulary}",
        f"--dupe_factor={dupe_factor}",
        f"--max_seq_length={max_seq_length}",
        "--max_predictions_per_seq=20",
    ]
