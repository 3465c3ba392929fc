r"""Answers of one process to raw text, beside ONNX Runtime and Hugging Face's torch.

    python benchmarks/serving.py [--peers peers/bin/python] [--output serving.json]

A classifier of BERT-base's size with random weights, tokenization included: one sentence of 9
tokens, one of 119, and 32 of 9 to 35. Each side is a process of its own on the same texts and runs
the same number of threads; they take turns. Ours is a SavedModel in a session, as servers run it.
ONNX Runtime's model is exported by torch.onnx; the peers' texts are tokenized by `tokenizers`.

Reported are medians over the turns, by the clock and in processor seconds, and medians of the
ratios within a turn; on a machine that others use, the ratios of processor time mean most. The
peers live in an environment of their own: --peers names its Python, or one is made in --work
(onnxruntime, onnx, torch, transformers and tokenizers from PyPI).
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Keeps PyTorch's waiting threads from spinning while another side has its turn.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

SIDES = {
    "float32": "bert-tf float32",
    "bfloat16": "bert-tf bfloat16",
    "onnx": "ONNX Runtime float32",
    "torch": "Hugging Face float32",
    "torch_bfloat16": "Hugging Face bfloat16",
}
PACKAGES = ("onnxruntime", "onnx", "torch", "transformers", "tokenizers")
# Calls of a turn: about as long for each case.
CASES = {"one of 9 tokens": 10, "one of 119": 3, "32 of 9 to 35": 1}
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# Every word is a word piece, so that all tokenizers agree.
LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = [f"{a}{b}{c}o" for a in LETTERS for b in "aeiouy" for c in LETTERS]
LONGEST = 128


def texts(case: str) -> list[str]:
    """The texts of a case; [CLS] and [SEP] are two of the tokens."""
    lengths = [9 + i * 11 % 27 for i in range(32)] if case.startswith("32") else [
        int(case.split()[2])]  # fmt: skip
    return [" ".join(WORDS[(31 * i + j) * 7 % len(WORDS)] for j in range(n - 2))
            for i, n in enumerate(lengths)]  # fmt: skip


def vocabulary() -> list[str]:
    """As many entries as BERT's."""
    known = [*SPECIALS, *WORDS]
    return [*known, *(f"[unused{i}]" for i in range(30522 - len(known)))]


def prepare(side: str, work: Path) -> None:
    """Writes the model of a side; runs in a process of its own."""
    if side in ("float32", "bfloat16"):
        from bert_tf import BertConfig, BertTokenizer
        from bert_tf.models.task_models import BertClassifier
        from bert_tf.tasks.fine_tuned import FineTuned
        from bert_tf.tasks.table import find_task

        policy = "float32" if side == "float32" else "mixed_bfloat16"
        model = BertClassifier(BertConfig(), labels=["no", "yes"], seed=0, dtype=policy)
        task = find_task("classification").with_settings({"max_length": LONGEST})
        tuned = FineTuned(task, model, BertTokenizer(vocabulary()), ["no", "yes"])
        tuned.export(side, root=work)
    elif side == "onnx":
        import torch
        import transformers

        config = transformers.BertConfig()
        model = transformers.BertForSequenceClassification(config).eval()
        names = ("input_ids", "attention_mask", "token_type_ids")

        class Logits(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = model  # a part of the module, whose weights the export then knows

            def forward(self, *inputs: Any) -> Any:
                return self.model(**dict(zip(names, inputs, strict=True))).logits

        ones = torch.ones(2, 16, dtype=torch.int64)
        axes = {name: {0: "batch", 1: "length"} for name in names}
        torch.onnx.export(
            Logits(), (ones,) * 3, str(work / "bert.onnx"), input_names=list(names),
            output_names=["logits"], dynamic_axes=axes, dynamo=False, opset_version=17,
        )  # fmt: skip


def answer_here(side: str, work: Path, threads: int) -> Callable[[list[str]], Any]:
    """A session over our SavedModel."""
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    from bert_tf.serving.export import versions
    from bert_tf.serving.saved_model import LoadedModel

    model = LoadedModel(work / side / str(versions(work / side)[-1]))
    return lambda strings: model.run(
        "serving_default", {"text": np.array([text.encode() for text in strings], object)}
    )


def answer_peer(side: str, work: Path, threads: int) -> Callable[[list[str]], Any]:
    """ONNX Runtime or torch, behind a tokenizer of `tokenizers`."""
    import numpy as np
    from tokenizers import BertWordPieceTokenizer

    (work / "vocab.txt").write_text("\n".join(vocabulary()))
    tokenizer = BertWordPieceTokenizer(str(work / "vocab.txt"), lowercase=True)
    tokenizer.enable_truncation(LONGEST)
    tokenizer.enable_padding()

    def tokenize(strings: list[str]) -> dict[str, Any]:
        found = tokenizer.encode_batch(strings)
        return {
            "input_ids": np.array([each.ids for each in found]),
            "attention_mask": np.array([each.attention_mask for each in found]),
            "token_type_ids": np.array([each.type_ids for each in found]),
        }

    if side == "onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(
            str(work / "bert.onnx"), options, providers=["CPUExecutionProvider"]
        )
        return lambda strings: session.run(None, tokenize(strings))

    import torch
    import transformers

    torch.set_num_threads(threads)
    dtype = torch.bfloat16 if side == "torch_bfloat16" else torch.float32
    model = transformers.BertForSequenceClassification(transformers.BertConfig()).eval().to(dtype)

    def answer(strings: list[str]) -> Any:
        with torch.inference_mode():
            inputs = {name: torch.from_numpy(x) for name, x in tokenize(strings).items()}
            return model(**inputs).logits.softmax(-1).float().numpy()

    return answer


def work_as(side: str, work: Path, threads: int) -> None:
    """A side's process: for each line, the name of a case, answers with times in seconds."""
    make = answer_here if side in ("float32", "bfloat16") else answer_peer
    answer = make(side, work, threads)
    print(json.dumps({"ready": side}), flush=True)
    for line in sys.stdin:
        case = line.strip()
        strings, calls = texts(case), CASES[case]
        answer(strings)  # whatever another side's turn has thrown out of the caches
        clock, processor = time.perf_counter(), time.process_time()
        for _ in range(calls):
            answer(strings)
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        with Path("/proc/self/statm").open() as statm:
            memory = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        print(json.dumps({"clock": clock / calls, "processor": processor / calls,
                          "memory": memory}), flush=True)  # fmt: skip


def python_of_peers(work: Path, given: str | None) -> str:
    """The Python that has the peers; makes an environment if none is given."""
    if given:
        return given
    python = work / "peers" / "bin" / "python"
    if not python.exists():
        print("making an environment of the peers", file=sys.stderr)
        venv.create(work / "peers", with_pip=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return str(python)


def versions_of(python: str, packages: tuple[str, ...]) -> dict[str, str]:
    """Installed versions by package."""
    code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    found = subprocess.run([python, "-c", code, *packages], check=True, capture_output=True)
    return dict(zip(packages, found.stdout.decode().split(), strict=True))


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Lets the sides take turns; times in seconds by side and case, a value for each turn."""
    peers = python_of_peers(work, options.peers)
    pythons = {side: peers if side in ("onnx", "torch", "torch_bfloat16") else sys.executable
               for side in options.sides}  # fmt: skip
    command = {side: [python, __file__, "--side", side, "--work", str(work), "--threads",
                      str(options.threads)] for side, python in pythons.items()}  # fmt: skip
    for side in options.sides:
        if not list(work.glob({"onnx": "bert.onnx"}.get(side, f"{side}/*/saved_model.pb"))):
            subprocess.run([*command[side], "--prepare"], check=True, stdout=subprocess.DEVNULL)
    found: dict[str, Any] = {side: {case: [] for case in CASES} for side in options.sides}
    with contextlib.ExitStack() as stack:
        workers = {}
        for side in options.sides:
            worker = subprocess.Popen(
                command[side], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            workers[side] = stack.enter_context(worker)
            stack.callback(worker.stdin.close)
            if not worker.stdout.readline():
                raise SystemExit(f"{SIDES[side]} did not start")
        order = list(options.sides)
        for turn in range(options.turns + 1):
            for case in CASES:
                for side in order:
                    workers[side].stdin.write(f"{case}\n")
                    workers[side].stdin.flush()
                    times = json.loads(workers[side].stdout.readline())
                    if turn:  # the first one counts for nothing
                        found[side][case].append(times)
            order = [*order[1:], order[0]]
            print(f"turn {turn} of {options.turns}", end="\r", file=sys.stderr)
    return {
        "turns": options.turns,
        "threads": options.threads,
        "versions": versions_of(sys.executable, ("tensorflow", "keras"))
        | versions_of(peers, PACKAGES),
        "seconds": found,
    }


def table(result: dict[str, Any]) -> str:
    """Milliseconds and ratios to ONNX Runtime, as Markdown."""
    seconds, against = result["seconds"], "onnx"
    lines = []
    for measured, title in (("clock", "by the clock"), ("processor", "in processor time")):
        lines += [f"| ms {title} (ONNX Runtime = 1) | " + " | ".join(CASES) + " |",
                  "|---" * (1 + len(CASES)) + "|"]  # fmt: skip
        for side, of_side in seconds.items():
            cells = []
            for case in CASES:
                values = [each[measured] for each in of_side[case]]
                cell = f"{1e3 * statistics.median(values):.1f}"
                if against in seconds:
                    others = [each[measured] for each in seconds[against][case]]
                    ratio = statistics.median(
                        value / other for value, other in zip(values, others, strict=True)
                    )
                    cell += f" ({ratio:.2f})"
                cells.append(cell)
            lines.append(f"| {SIDES[side]} | " + " | ".join(cells) + " |")
        lines.append("")
    lines += ["| | resident memory, MB |", "|---|---|"]
    for side, of_side in seconds.items():
        memory = max(each["memory"] for values in of_side.values() for each in values)
        lines.append(f"| {SIDES[side]} | {memory / 1e6:.0f} |")
    named = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    return "\n".join([*lines, "", f"{result['turns']} turns, {result['threads']} threads; {named}"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", help="Python with the peers' packages")
    parser.add_argument("--work", help="folder for models and environment, kept; else temporary")
    parser.add_argument("--output", help="JSON file of all times")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        work = Path(options.work or stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(parents=True, exist_ok=True)
        if options.prepare:
            return prepare(options.side, work)
        if options.side:
            return work_as(options.side, work, options.threads)
        result = measure(options, work)
    if options.output:
        Path(options.output).write_text(json.dumps(result, indent=1))
    print(table(result))


if __name__ == "__main__":
    main()
