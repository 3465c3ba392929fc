r"""Fine-tuned scores beside Hugging Face's: same weights, data, recipe and seeds, in turns.

    python benchmarks/finetuning_scores.py --model MODEL --peers peer/bin/python \
      --task rte=glue/RTE --task mrpc=glue/MRPC,glue/MRPC/msr_paraphrase_test.txt \
      --task conll2003=conll2003 --task squad=squad

--task names a task with its training data and, unless that is the folder of the published files,
its validation data. Ours is `run_finetuning` of `bert_tf.commands.finetuning_run`, which runs
`bert-tf finetune`; theirs is Hugging Face's model class for the task in a plain PyTorch loop
(AdamW, linear warm-up and decay, batches padded to their longest example). Both train for all
epochs, and the last model predicts the validation examples; the same functions score both sides.

Every finished run is a line of --results: the same command resumes after the last one and prints
the table. Times are those of the training steps, in wall-clock and processor seconds; on a shared
machine only the latter can be compared.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from peers import add_option, peer_python  # benchmarks/peers.py
from training_step import CLIP_NORM, WEIGHT_DECAY, adamw  # benchmarks/training_step.py

BATCH_SIZE, LEARNING_RATE, WARMUP_SHARE = 32, 5e-5, 0.1
EPSILON = 1e-8  # PyTorch's
# Of a normal distribution cut at two deviations, from which the original draws a head; Hugging Face
# draws it from a whole one, whose deviation is 1.
TRUNCATED_DEVIATION = 0.8796256610342398
STRIDE, LONGEST_QUESTION, N_BEST, LONGEST_ANSWER = 128, 64, 20, 30
LOG_EVERY = 50
SIDES = {"here": "bert-tf", "there": "Hugging Face"}


class Stopwatch:
    """Wall-clock and processor seconds since it was made."""

    def __init__(self) -> None:
        self._begun = self._now()

    def read(self) -> dict[str, float]:
        """The seconds so far."""
        wall, cpu = (end - start for end, start in zip(self._now(), self._begun, strict=True))
        return {"seconds": round(wall, 1), "cpu_seconds": round(cpu, 1)}

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


def timed_steps() -> tuple[Any, Callable[[], dict[str, float]]]:
    """A watcher of a run, and what it has seen: steps, and the seconds that they took."""
    from bert_tf.training.watcher import Watcher

    watch = Stopwatch()
    seen: dict[str, Any] = {}

    class Watch(Watcher):
        def begin(self, total_steps: int) -> None:
            seen.update(begin=watch.read(), steps=total_steps)

        def after_step(self, step: int) -> None:
            seen.update(end=watch.read())
            if step % LOG_EVERY == 0:
                print(f"step {step:,} of {seen['steps']:,}: {seen['end']}", flush=True)

    def spent() -> dict[str, float]:
        begin, end = seen["begin"], seen["end"]
        return {"steps": seen["steps"], **{key: round(end[key] - begin[key], 1) for key in end}}

    return Watch(), spent


def resumed(
    results: Path, keys: Iterable[dict[str, Any]], run: Callable[[dict[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Makes the runs whose keys are not in the file of results, and adds them; returns all."""
    results.parent.mkdir(parents=True, exist_ok=True)
    results.touch()
    for key in keys:
        if any(key.items() <= json.loads(line).items() for line in results.open()):
            continue
        line = json.dumps(key | run(key))
        with results.open("a") as file:
            file.write(f"{line}\n")
        print(line, flush=True)
    return [json.loads(line) for line in results.open()]


def find_data(given: str) -> tuple[Any, str, str]:
    """Task, training data and validation data of "TASK=TRAIN[,VALIDATION]"."""
    from bert_tf.tasks.task_table import find_task

    name, _, paths = given.partition("=")
    train, _, validation = paths.partition(",")
    return find_task(name), train, validation or train


def prepare(given: str, file: Path) -> None:
    """Writes training and validation examples of a task for Hugging Face's side."""
    task, train, validation = find_data(given)
    splits = [task.read(train, "train"), task.read(validation, "validation")]
    labels = task.kind.label_names(task, splits[0])
    rows = []
    for examples in splits:
        targets = task.kind.targets(examples, labels).tolist()
        columns = {**examples.columns, "target": targets}
        keys = columns.keys() - {"label", "answers"}
        rows.append([{key: columns[key][i] for key in keys} for i in range(len(examples))])
    data = {
        "kind": type(task.kind).__name__.lower(),
        "labels": labels,
        "max_length": task.max_length,
        "train": rows[0],
        "validation": rows[1],
    }
    file.write_text(json.dumps(data))


def score(given: str, predictions: Any) -> dict[str, float | None]:
    """Scores Hugging Face's predictions with the functions that score ours."""
    import numpy as np

    from bert_tf.tasks.scoring.conlleval import score_entities
    from bert_tf.tasks.scoring.squad_scores import squad_1_scores

    task, train, validation = find_data(given)
    examples = task.read(validation, "validation")
    match type(task.kind).__name__:
        case "Tagging":
            gold = [text.split() for text in examples.columns["label"]]
            scores = score_entities(gold, predictions).scores()
            return {name: scores[name] for name in ("f1", "precision", "recall")}
        case "Span":
            columns = examples.columns
            gold = dict(zip(columns["id"], columns["answers"], strict=True))
            return dict(squad_1_scores(gold, dict(zip(gold, predictions, strict=True))))
        case _:
            labels = task.kind.label_names(task, task.read(train, "train"))
            truth = task.kind.targets(examples, labels)
            return {
                function.__name__: function(truth, np.array(predictions))
                for function in task.scores
            }


def train_here(options: argparse.Namespace, given: str, seed: int, work: Path) -> dict[str, Any]:
    """Fine-tunes with bert-tf."""
    import tensorflow as tf

    from bert_tf.commands.finetune import Options as FinetuningOptions
    from bert_tf.commands.finetuning_run import run_finetuning
    from bert_tf.startup import keep_freed_memory

    keep_freed_memory()
    task, train, validation = find_data(given)
    watch, spent = timed_steps()
    result = run_finetuning(
        FinetuningOptions(
            model=str(with_wider_head(Path(options.model), work)),
            output=str(work / "run"),
            task=task.name,
            train=train,
            validation=validation,
            seed=seed,
            batch_size=BATCH_SIZE,
            epochs=options.epochs,
            # The original counts the decay from step 0, Hugging Face from the end of the warm-up:
            # at this rate both come down the same line.
            learning_rate=LEARNING_RATE / (1 - WARMUP_SHARE),
            warmup_share=WARMUP_SHARE,
            weight_decay=WEIGHT_DECAY,
            clip_norm=CLIP_NORM,
            bias_correction=True,
            epsilon=EPSILON,
            precision=options.precision,
            evaluate_every=10**9,  # the last model alone, as on the other side
        ),
        watch,
    )
    shutil.rmtree(work / "run")
    scores = {name: value for name, value in result.evaluation.scores.items() if name != "examples"}
    return {
        "scores": scores,
        "examples": result.train_examples,
        **spent(),
        "versions": {"tensorflow": tf.__version__, "precision": options.precision},
    }


def with_wider_head(model: Path, work: Path) -> Path:
    """The model in `work`, with a new head's weights as far apart as Hugging Face draws them."""
    copy = work / "model"
    shutil.copytree(model.resolve(), copy, copy_function=os.symlink)
    file = copy / "config.json"
    config = json.loads(file.read_text())
    config["initializer_range"] = config.get("initializer_range", 0.02) / TRUNCATED_DEVIATION
    file.unlink()
    file.write_text(json.dumps(config))
    return copy


def train_there(options: argparse.Namespace, given: str, seed: int, work: Path) -> dict[str, Any]:
    """Fine-tunes with Hugging Face's model in PyTorch; runs in its Python."""
    import torch
    import transformers

    data = json.loads((work / "data.json").read_text())
    kind, labels, max_length = data["kind"], data["labels"], data["max_length"]
    heads = {"tagging": "TokenClassification", "span": "QuestionAnswering"}
    head = getattr(transformers, f"AutoModelFor{heads.get(kind, 'SequenceClassification')}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    torch.manual_seed(seed)
    outputs = {} if kind == "span" else {"num_labels": len(labels) or 1}
    model = head.from_pretrained(options.model, **outputs)
    encode = {"tagging": encode_words, "span": encode_questions}.get(kind, encode_texts)
    train, validation = (
        encode(data[split], tokenizer, max_length) for split in ("train", "validation")
    )
    if kind == "span":
        train = [row for row in train if row["lost"] is False]

    def batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Pads rows to the longest of them."""
        width = max(len(row["input_ids"]) for row in rows)
        fill = {"input_ids": tokenizer.pad_token_id, "labels": -100}
        tensors = {}
        targets = ("labels", "start_positions", "end_positions")
        for name in rows[0].keys() & {*tokenizer.model_input_names, *targets}:
            values = [row[name] for row in rows]
            if isinstance(values[0], list):
                values = [v + [fill.get(name, 0)] * (width - len(v)) for v in values]
            tensors[name] = torch.tensor(values)
        return tensors

    optimizer = adamw(model, LEARNING_RATE, EPSILON)
    total = -(-len(train) // BATCH_SIZE) * options.epochs
    schedule = transformers.get_linear_schedule_with_warmup(
        optimizer, round(total * WARMUP_SHARE), total
    )
    model.train()
    watch, step = Stopwatch(), 0
    for _ in range(options.epochs):
        order = torch.randperm(len(train)).tolist()
        for first in range(0, len(train), BATCH_SIZE):
            rows = [train[i] for i in order[first : first + BATCH_SIZE]]
            with torch.autocast("cpu", torch.bfloat16, enabled=options.peer_precision != "float32"):
                loss = model(**batch(rows)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            step += 1
            if step % LOG_EVERY == 0:
                print(f"step {step:,} of {total:,}: {watch.read()}", flush=True)
    spent = watch.read()
    model.eval()
    outputs = []
    with torch.inference_mode():
        for first in range(0, len(validation), BATCH_SIZE):
            rows = validation[first : first + BATCH_SIZE]
            names = tokenizer.model_input_names
            result = model(**{name: value for name, value in batch(rows).items() if name in names})
            if kind == "span":
                result.logits = torch.stack([result.start_logits, result.end_logits], -1)
            outputs += list(result.logits.numpy())
    decode = {
        "classification": lambda: [int(logits.argmax()) for logits in outputs],
        "regression": lambda: [float(logits[0]) for logits in outputs],
        "tagging": lambda: [
            # Words behind the length limit are O.
            [labels[logits[place].argmax()] if place is not None else "O" for place in row["first"]]
            for row, logits in zip(validation, outputs, strict=True)
        ],
        "span": lambda: best_answers(data["validation"], validation, outputs),
    }
    return {
        "predictions": decode[kind](),
        "examples": len(data["train"]),
        "steps": total,
        **spent,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "precision": options.peer_precision,
        },
    }


def encode_texts(rows: list[dict[str, Any]], tokenizer: Any, max_length: int) -> list[dict]:
    """One text or a pair, cut to the length."""
    texts = [[row[name] for row in rows] for name in ("text", "text_pair") if name in rows[0]]
    encoded = tokenizer(*texts, truncation=True, max_length=max_length)
    return [
        {**{name: encoded[name][i] for name in encoded}, "labels": row["target"]}
        for i, row in enumerate(rows)
    ]


def encode_words(rows: list[dict[str, Any]], tokenizer: Any, max_length: int) -> list[dict]:
    """Words with a label at the first piece of each; `first` has the place of that piece."""
    words = [row["words"].split() for row in rows]
    encoded = tokenizer(words, is_split_into_words=True, truncation=True, max_length=max_length)
    made = []
    for i, row in enumerate(rows):
        first = {word: place for place, word in reversed(list(enumerate(encoded.word_ids(i))))}
        places = [first.get(word) for word in range(len(words[i]))]
        labels = [-100] * len(encoded["input_ids"][i])
        for place, label in zip(places, row["target"], strict=False):
            if place is not None:
                labels[place] = label
        made.append(
            {**{name: encoded[name][i] for name in encoded}, "labels": labels, "first": places}
        )
    return made


def encode_questions(rows: list[dict[str, Any]], tokenizer: Any, max_length: int) -> list[dict]:
    """Windows over the contexts, each with its question's number and the pieces' places."""
    questions = tokenizer(
        [row["question"] for row in rows], add_special_tokens=False, return_offsets_mapping=True
    )["offset_mapping"]
    cut = [
        row["question"][: offsets[:LONGEST_QUESTION][-1][1]]
        for row, offsets in zip(rows, questions, strict=True)
    ]
    encoded = tokenizer(
        cut,
        [row["context"] for row in rows],
        truncation="only_second",
        max_length=max_length,
        stride=STRIDE,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    made = []
    for i, number in enumerate(encoded["overflow_to_sample_mapping"]):
        sequence = encoded.sequence_ids(i)
        offsets = zip(encoded["offset_mapping"][i], sequence, strict=True)
        places = [place if part == 1 else None for place, part in offsets]
        span = rows[number]["span"]
        start, end = span or (None, None)
        starts = [n for n, p in enumerate(places) if span and p and p[0] <= start < p[1]]
        ends = [n for n, p in enumerate(places) if span and p and p[0] < end <= p[1]]
        whole = bool(starts and ends)
        made.append(
            {
                **{name: encoded[name][i] for name in tokenizer.model_input_names},
                "start_positions": starts[0] if whole else 0,
                "end_positions": ends[0] if whole else 0,
                "question": number,
                "places": places,
                "lost": span is None,
            }
        )
    return made


def best_answers(rows: list[dict[str, Any]], windows: list[dict], outputs: list) -> list[str]:
    """The best span of each question, as in run_qa.py."""
    best = [(float("-inf"), "")] * len(rows)
    for window, logits in zip(windows, outputs, strict=True):
        places, number = window["places"], window["question"]
        logits = logits[: len(places)]  # without padding
        starts, ends = ((-logits[:, side]).argsort()[:N_BEST].tolist() for side in (0, 1))
        for start in starts:
            for end in ends:
                fits = start <= end < start + LONGEST_ANSWER and places[start] and places[end]
                value = float(logits[start, 0] + logits[end, 1])
                if fits and value > best[number][0]:
                    text = rows[number]["context"][places[start][0] : places[end][1]]
                    best[number] = value, text
    return [text for _, text in best]


def table(runs: list[dict[str, Any]]) -> str:
    """Mean, deviation and seeds of every score on both sides, and the ratio of the times."""
    lines = [
        "| task | score | bert-tf | Hugging Face | seeds | seconds | CPU seconds | CPU ratio |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for task in dict.fromkeys(run["task"] for run in runs):
        sides = [[r for r in runs if (r["task"], r["side"]) == (task, side)] for side in SIDES]
        names = [set(run["scores"]) for side in sides for run in side]
        for name in (sides[0] or sides[1])[0]["scores"]:
            if not all(name in scores for scores in names):
                continue
            cells = []
            for side in sides:
                values = [run["scores"][name] for run in side]
                deviation = statistics.stdev(values) if len(values) > 1 else 0
                cells.append(f"{statistics.fmean(values):.4g} ± {deviation:.2g}" if values else "")
            seeds = ", ".join(str(len(side)) for side in sides)
            times = [
                [statistics.fmean(run[key] for run in side) for side in sides if side]
                for key in ("seconds", "cpu_seconds")
            ]
            spent = [", ".join(f"{value:.0f}" for value in pair) for pair in times]
            ratio = f"{times[1][1] / times[1][0]:.2f}" if all(sides) else ""
            lines.append(f"| {task} | {name} | {' | '.join([*cells, seeds, *spent, ratio])} |")
    return "\n".join(lines)


def run_one(options: argparse.Namespace, given: str, seed: int, side: str) -> dict[str, Any]:
    """A run in a process of its own."""
    work = Path(options.work) / f"{given.partition('=')[0]}-{side}-{seed}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    if side == "there":
        prepare(given, work / "data.json")
    python = sys.executable if side == "here" else options.peers
    command = [python, *sys.argv, "--part", side, given, str(seed), str(work)]
    subprocess.run(command, check=True)
    result = json.loads((work / "result.json").read_text())
    if side == "there":
        result["scores"] = score(given, result.pop("predictions"))
    shutil.rmtree(work)
    return result


def main() -> None:
    """Runs what is not in the results yet, and prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="model directory to start from")
    parser.add_argument("--task", action="append", default=[], help="TASK=TRAIN[,VALIDATION]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--precision", default="float32", help="compute precision of bert-tf")
    parser.add_argument(
        "--peer-precision", default="float32", help="Hugging Face's; mixed_bfloat16 for autocast"
    )
    parser.add_argument("--side", choices=SIDES, nargs="+", default=list(SIDES))
    add_option(parser)
    parser.add_argument("--results", default="runs/finetuning_scores/results.jsonl")
    parser.add_argument("--work", default="runs/finetuning_scores", help="folder for runs")
    parser.add_argument("--part", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        side, given, seed, work = options.part
        train = train_here if side == "here" else train_there
        result = train(options, given, int(seed), Path(work))
        (Path(work) / "result.json").write_text(json.dumps(result))
        return
    if "there" in options.side:
        options.peers = peer_python(options.peers)
    data = {given.partition("=")[0]: given for given in options.task}
    keys = (
        {"task": task, "side": side, "seed": seed, "epochs": options.epochs}
        for task in data
        for seed in options.seeds
        for side in options.side
    )

    def run(key: dict[str, Any]) -> dict[str, Any]:
        return run_one(options, data[key["task"]], key["seed"], key["side"])

    print(table(resumed(Path(options.results), keys, run)))


if __name__ == "__main__":
    main()
