r"""Answers of one process to raw text, beside ONNX Runtime and Hugging Face's torch.

    python benchmarks/serving.py [--peers peers/bin/python] [--output serving.json]

A classifier of BERT-base's size with random weights, tokenization included: one sentence of 9
tokens, one of 119, and 32 of 9 to 35. Each side is a process of its own on the same texts and runs
the same number of threads; they take turns. Ours is a SavedModel in a session, as servers run it.
ONNX Runtime's model is exported by torch.onnx; the peers' texts are tokenized by `tokenizers`.

Reported are medians over the turns, by the clock and in processor time, and medians of the ratios
within a turn; on a shared machine the ratios of processor time are the most reliable.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import turns  # benchmarks/turns.py
from peers import THERE, add_option, peer_python, versions  # benchmarks/peers.py

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
OURS = ("float32", "bfloat16")
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
    if side in OURS:
        from bert_tf import BertConfig, BertTokenizer
        from bert_tf.models.task_models import BertClassifier
        from bert_tf.tasks.table import find_task
        from bert_tf.trained.fine_tuned import FineTuned

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
    """A side's process: for each line, the name of a case, seconds of an answer and memory."""
    make = answer_here if side in OURS else answer_peer
    answer = make(side, work, threads)

    def reply(case: str) -> list[float]:
        strings = texts(case)
        answer(strings)  # whatever another side's turn has thrown out of the caches
        spent = turns.timed(lambda: answer(strings), CASES[case])
        with Path("/proc/self/statm").open() as statm:
            return [*spent, int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")]

    turns.answer(reply)


def measure(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Times by case, then by side; versions; resident bytes by side."""
    from bert_tf.config import BertConfig
    from bert_tf.models.cost import classification_flops

    # ONNX Runtime, if it is there, is what the others are compared with.
    sides = sorted(options.sides, key=lambda side: side != "onnx")
    python = {side: peer_python(options.peers) for side in sides if side not in OURS}
    command = {side: [python.get(side, sys.executable), __file__, "--side", side, "--work",
                      str(work), "--threads", str(options.threads)] for side in sides}  # fmt: skip
    for side in sides:
        if not list(work.glob({"onnx": "bert.onnx"}.get(side, f"{side}/*/saved_model.pb"))):
            subprocess.run([*command[side], "--prepare"], check=True, stdout=subprocess.DEVNULL)
    found = turns.take_turns(command, options.turns, list(CASES))
    found = {SIDES[side]: of_side for side, of_side in found.items()}
    works = {}
    for number, case in enumerate(CASES):
        lengths = [2 + len(text.split()) for text in texts(case)]
        flops = sum(classification_flops(BertConfig(), length=n, classes=2) for n in lengths) / 3
        works[f"serving, {case}"] = turns.summary(
            {side: of_side[:, number] for side, of_side in found.items()}, len(lengths), "texts",
            {side: (flops, side.split()[-1]) for side in found},
        )  # fmt: skip
    return {
        "works": works,
        "versions": versions() | (versions(next(iter(python.values())), THERE) if python else {}),
        "bytes": {side: of_side[:, :, 2].max() for side, of_side in found.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_option(parser)
    parser.add_argument("--work", help="folder for the models, kept; else temporary")
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
        Path(options.output).write_text(json.dumps(result["works"], indent=1))
    for name, found in result["works"].items():
        print(f"{name}\n\n{turns.table(found)}\n")
    for side, memory in result["bytes"].items():
        print(f"{side:24} {memory / 1e6:6,.0f} MB resident")
    named = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    print(f"{options.turns} turns, {options.threads} threads; {named}")


if __name__ == "__main__":
    main()
