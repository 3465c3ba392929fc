"""Time and memory that the commands take before they do any work, beside other libraries.

    python benchmarks/start_up.py [--peers peer/bin/python] [--output start_up.json]

Each line is a process of its own; they take turns. Reported are medians by the clock and in
processor seconds, and the most memory. TensorFlow's own import is a part of each command that
computes. A peer is the import of its BERT: keras_hub from this environment, transformers (with
torch) from the peers'.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import turns  # benchmarks/turns.py
from peers import add_option, peer_python  # benchmarks/peers.py

PEERS = {
    "keras_hub": "from keras_hub.models import BertBackbone",
    "transformers": "from transformers import BertForPreTraining",
}


def work(peers: dict[str, str], model: Path) -> dict[str, list[str]]:
    """Command lines by name."""
    bert_tf = [sys.executable, "-m", "bert_tf.cli"]
    lines = {
        "bert-tf --help": [*bert_tf, "--help"],
        "bert-tf finetune --help": [*bert_tf, "finetune", "--help"],
        "bert-tf tasks": [*bert_tf, "tasks"],
        "bert-tf predict, one text": [*bert_tf, "predict", "--model", str(model), "--text", "a"],
        "import tensorflow": [sys.executable, "-c", "import tensorflow"],
        "import bert_tf": [sys.executable, "-c", "from bert_tf import BertEncoder"],
    }
    return lines | {f"import {peer}": [python, "-c", PEERS[peer]] for peer, python in peers.items()}


# A model of the tiny size with a small vocabulary: its work takes no time.
MAKE_MODEL = """
import sys
from bert_tf import BertConfig, BertPreTrainer, BertTokenizer, save_model
vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
model = BertPreTrainer(BertConfig.named("tiny", vocab_size=len(vocabulary)), seed=0)
save_model(model, sys.argv[1], tokenizer=BertTokenizer(vocabulary))
"""


def run(command: list[str]) -> dict[str, float]:
    """Seconds by the clock, processor seconds and peak megabytes of one process."""
    begun = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    clock = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{' '.join(command)} failed: {process.stderr.read().decode()}")
    processor = usage.ru_utime + usage.ru_stime
    return {"clock": clock, "processor": processor, "MB": usage.ru_maxrss / 1e3}


def main() -> None:
    parser = turns.parser(__doc__, 5)
    add_option(parser)
    options = parser.parse_args()
    peers = {"keras_hub": sys.executable, "transformers": peer_python(options.peers)}
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        # A child's peak memory counts its parent's from before it began: TensorFlow stays out.
        subprocess.run([sys.executable, "-c", MAKE_MODEL, model], check=True, capture_output=True)
        lines = work(peers, model)
        measured: dict[str, list[dict[str, float]]] = {name: [] for name in lines}
        for turn in range(options.turns):
            for name, command in lines.items():
                measured[name].append(run(command))
            print(f"turn {turn + 1} of {options.turns}", end="\r", file=sys.stderr)
    medians = {
        name: {unit: statistics.median(usage[unit] for usage in runs) for unit in runs[0]}
        for name, runs in measured.items()
    }
    turns.write(medians, options.output)
    print("| | seconds | processor seconds | peak MB |\n|---|---|---|---|")
    for name, of_name in medians.items():
        clock, processor, memory = of_name.values()
        print(f"| {name} | {clock:.2f} | {processor:.2f} | {memory:.0f} |")


if __name__ == "__main__":
    main()
