"""What must not move while the inside of the project does: cases with their results.

They use commands, files and public names alone, so that they run on any version:

    python tests/frozen/frozen_cases.py FOLDER RESULTS.json [PATTERN ...]

A result is JSON: hashes, names, losses, answers. `compare.py` compares two checkouts on one
machine, bit for bit; `test_frozen.py` compares with what commit 06fc4d9 gave.
"""

import contextlib
import fnmatch
import functools
import hashlib
import importlib
import inspect
import io
import itertools
import json
import os
import re
import shutil
import sys
import tarfile
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

ARCHIVE = Path(__file__).parent / "06fc4d9.tar.xz"
EXPORTS = ARCHIVE.with_name("06fc4d9-exports.tar.xz")
SHARED = Path(__file__).resolve().parents[3] / "shared"
STEPS = 50

# Task -> file of its examples, and its options.
TASKS = {
    "classification": ("classification.tsv", ""),
    "multi_label": ("multi_label.tsv", ""),
    "regression": ("regression.csv", "--pair_column text_pair"),
    "choice": ("choice.csv", ""),
    "embedding": ("embedding.tsv", ""),
    "tagging": ("tagging.conll", ""),
    "tags": ("tags.conll", ""),
    "squad2": ("squad2.json", "--max_query_length 8"),
}
SHARDS = {
    "static": "--dupe_factor 2 --num_shards 2",
    "dynamic": "--masking dynamic",
    "whole-word": "--whole_word_masking --max_ngram 3 --dupe_factor 2",
    "full-sentences": "--instances full_sentences",
    "rows": "--masking dynamic --instances full_sentences --instances_per_row 4",
    "cut": "--no_cut_long_sentences --short_seq_prob 0.5 --seed 7",
    "workers": "--workers 2 --dupe_factor 3 --num_shards 4 --buffer_bytes 4096",
    "lengths": "--max_seq_length 16 32",
}
# Name -> shards and options of a pre-training.
PRETRAININGS = {
    "pairs": ("static", "--objective mlm+nsp"),
    "words": ("full-sentences", "--objective mlm"),
    "rows": ("rows", ""),
    "masks": ("dynamic", "--whole_word_masking true"),
    "accumulated": ("static", "--gradient_accumulation_steps 2 --optimizer lamb"),
    "long": ("static", "--long_shards shards/dynamic --schedule cosine"),
    "ltr": ("dynamic", "--objective ltr --size start/one/config.json"),
}
SIZES = ("one", "two")  # layers
PRECISIONS = ("float32", "mixed_bfloat16")
EXPORTED = ("float32", "bfloat16", "int8")  # versions 1, 2, 3 of `export --precision all`


def run(command: str) -> str:
    import bert_tf.cli

    main = getattr(bert_tf.cli, "main", None)
    if not callable(main):  # of versions in which it is a module of its own
        main = importlib.import_module("bert_tf.cli.main").main

    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            status = main(command.split())
        except SystemExit as stopped:  # --help
            status = stopped.code or 0
    assert status == 0, command
    return out.getvalue()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def vocabulary(options: str) -> dict[str, str]:
    run(f"vocab --corpus corpus.txt --output new-vocabulary --min_frequency 1 {options}")
    found = sha256(Path("new-vocabulary/vocab.txt"))
    shutil.rmtree("new-vocabulary")
    return {"vocab.txt": found}


def make_shards(name: str) -> Path:
    folder = Path("shards", name)
    if not folder.exists():
        length = "" if name == "lengths" else "--max_seq_length 32"
        run(
            f"shards --corpus corpus.txt --tokenizer vocabulary --output {folder} {length} "
            f"--held_out_share 0.2 --num_shards 1 {SHARDS[name]}"
        )
    return folder


def shards(name: str) -> dict[str, str]:
    """The manifest names the machine's files, and later versions count more in it."""
    folder = make_shards(name)
    return {str(x.relative_to(folder)): sha256(x) for x in sorted(folder.rglob("*.tfrecord"))}


def trajectory(folder: str) -> dict[str, Any]:
    """Losses of all steps and the weights at the end, of a finished run."""
    lines = map(json.loads, Path(folder, "logs", "scalars.jsonl").read_text().splitlines())
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == STEPS
    return {"losses": losses, "model.safetensors": sha256(Path(folder, "last/model.safetensors"))}


def finetuning(task: str, start: str, precision: str, output: str, more: str = "") -> str:
    file, options = TASKS[task]
    return (
        f"finetune --task {task} --model {start} --train data/{file} --validation data/{file} "
        f"--output {output} --epochs 100 --batch_size 8 --learning_rate 1e-3 --max_length 32 "
        f"--log_every 1 --strategy one --precision {precision} {options} {more}"
    )


def finetune(task: str, size: str, precision: str) -> dict[str, Any]:
    output = f"runs/{task}-{size}-{precision}"
    more = f"--max_steps {STEPS} --evaluate_every {STEPS}"
    run(finetuning(task, f"start/{size}", precision, output, more))
    found = trajectory(output)
    shutil.rmtree(output)
    return found


def pretrain(name: str, size: str, precision: str) -> dict[str, Any]:
    kind, options = PRETRAININGS[name]
    output = f"runs/{name}-{size}-{precision}"
    first = "" if "--size" in options else f"--model start/{size}"
    for each in {kind, "dynamic"} if "--long_shards" in options else {kind}:
        make_shards(each)
    run(
        f"pretrain --shards shards/{kind} {first} --output {output} --steps {STEPS} "
        f"--batch_size 8 --learning_rate 1e-3 --log_every 1 --evaluate_every {STEPS} "
        f"--evaluation_batches 2 --strategy one --precision {precision} {options}"
    )
    found = trajectory(output)
    shutil.rmtree(output)
    return found


# Methods that users call; others of the classes are Keras' hooks or ours.
METHODS = {
    *("answer", "choose", "classify", "compile", "detokenize", "embed", "evaluate", "explain"),
    *("export", "fill", "fit", "freeze_layers", "from_dict", "from_directory", "from_json"),
    *("from_preset", "id_to_token", "named", "predict", "save", "save_to_preset", "signature"),
    *("tag", "to_dict", "to_json", "token_to_id", "tokenize", "tokenize_with_offsets"),
}
# Trainings whose losses are frozen; `compare.py` runs many more.
FROZEN_TRAININGS = [
    *(f"train/{name}/one/float32" for name in ("pairs", "words", *TASKS)),
    *(f"train/{name}/one/mixed_bfloat16" for name in ("pairs", "classification", "tagging")),
    *(f"train/{name}/two/float32" for name in ("pairs", "squad2")),
]
_KILLED = "--max_steps 24 --evaluate_every 8 --save_every 6"
# Name -> command of a run that 06fc4d9 began: it was killed after a checkpoint.
RESUMED = {
    "pretraining": "pretrain --shards old_shards/static --model start/one "
    "--output killed/pretraining --batch_size 8 --steps 24 --save_every 6 --evaluate_every 8 "
    "--evaluation_batches 2 --learning_rate 1e-3 --log_every 1 --strategy one",
    **{task: finetuning(task, "start/one", "float32", f"killed/{task}", _KILLED) for task in TASKS},
}


def asked(task: str, count: int = 6) -> dict[str, list]:
    """Inputs of a task's SavedModel: texts of its examples, and hard ones."""
    import csv

    file = Path("data", TASKS[task][0])
    if task == "squad2":
        paragraphs = json.loads(file.read_text())["data"][0]["paragraphs"][:count]
        return {
            "question": [p["qas"][0]["question"] for p in paragraphs],
            "context": [p["context"] for p in paragraphs],
        }
    if file.suffix == ".conll":
        sentences = file.read_text().split("\n\n")[:count]
        return {"words": [" ".join(w.split()[0] for w in s.splitlines()) for s in sentences]}
    delimiter = "," if file.suffix == ".csv" else "\t"
    rows = list(csv.reader(file.read_text().splitlines(), delimiter=delimiter))
    named = dict(zip(rows[0], zip(*rows[1 : count + 1], strict=True), strict=True))
    if task == "choice":
        choices = zip(*(named[f"choices{i}"] for i in range(3)), strict=True)
        return {"context": list(named["context"]), "choices": [list(x) for x in choices]}
    return {name: list(named[name]) for name in ("text", "text_pair") if name in named}


def answers(
    export: Path, inputs: dict[str, list], left_out: Collection[str] = ()
) -> dict[str, Any]:
    import tensorflow as tf

    found = {}
    signatures = tf.saved_model.load(str(export)).signatures
    for name, signature in signatures.items():
        wanted = signature.structured_input_signature[1]
        if name in left_out or not wanted.keys() <= inputs.keys():
            continue
        outputs = signature(**{n: tf.constant(inputs[n]) for n in wanted})
        for output, values in sorted(outputs.items()):
            found[f"{name}/{output}"] = plain(values.numpy())
    return found


def plain(values: Any) -> Any:
    texts = values.dtype.kind in "OS"
    return [x.decode() for x in values.reshape(-1)] if texts else values.tolist()


def exporting(task: str, output: str, precision: str = "all") -> str:
    calibration = f"--calibration data/{TASKS[task][0]}" if precision in ("int8", "all") else ""
    return (
        f"export --model fine_tuned/{task} --name {task} --output {output} --precision {precision} "
        f"--max_loss 100 {calibration}"
    )


def export(task: str) -> dict[str, Any]:
    """A fine-tuned model, exported in each precision, answers."""
    run(exporting(task, "new_exports"))
    found = {}
    for version, precision in enumerate(EXPORTED, start=1):
        found[precision] = answers(Path("new_exports", task, str(version)), asked(task))
    shutil.rmtree("new_exports")
    return found


def model_classes() -> list[type]:
    import bert_tf

    names = sorted(name for name in bert_tf.__all__ if re.match(r"Bert(?!Config|Tok|Prep)", name))
    return [getattr(bert_tf, name) for name in names]


def names_of_variables() -> dict[str, list[str]]:
    """Each class of models: variables' paths, their names in `.keras` and in model.safetensors."""
    import h5py
    from safetensors import safe_open

    import bert_tf

    found = {}
    for made in model_classes():
        model = made.from_preset("start/one", **_arguments(made))
        model.save("model.keras")
        with zipfile.ZipFile("model.keras") as file, file.open("model.weights.h5") as weights:
            stored: list[str] = []
            h5py.File(io.BytesIO(weights.read())).visititems(
                lambda name, item, stored=stored: (
                    stored.append(f"{name} {item.shape}") if hasattr(item, "shape") else None
                )
            )
        bert_tf.save_model(model, "saved")
        with safe_open("saved/model.safetensors", "numpy") as file:
            tensors = [f"{n} {file.get_slice(n).get_shape()}" for n in file.keys()]  # noqa: SIM118
        name = made.__name__
        # Keras numbers layers without a name through the process.
        found[f"{name} path"] = sorted(_unnumbered(v.path) for v in model.variables)
        found[f"{name} .keras"] = sorted(stored)
        found[f"{name} model.safetensors"] = sorted(tensors)
        shutil.rmtree("saved")
    return found


def _unnumbered(path: str) -> str:
    return re.sub(r"_\d+(?=/|$)", "", path.split("/", 1)[-1] if "/" in path else path)


def _arguments(made: type) -> dict[str, Any]:
    """What `from_preset` needs to make a new head."""
    labels = {"BertTagger": ["O", "B-PER"], "BertClassifier": ["bad", "good"]}
    labels["BertMultiLabelClassifier"] = labels["BertClassifier"]
    return {"labels": labels[made.__name__]} if made.__name__ in labels else {}


def initial_weights(seed: int) -> dict[str, str]:
    from bert_tf import BertConfig, BertPreTrainer

    model = BertPreTrainer(BertConfig.from_json("start/two/config.json"), seed=seed)
    digest = hashlib.sha256()
    for weight in model.get_weights():
        digest.update(weight.tobytes())
    return {"weights": digest.hexdigest()}


def options() -> dict[str, list[str]]:
    commands = re.findall(r"^ {2,4}([a-z]+) +[a-z]", run("--help"), re.MULTILINE)
    found = {}
    for command in commands:
        text = run(f"{command} --help")
        if "--help_all" in text:
            text = run(f"{command} --help_all")
        found[command] = sorted(set(re.findall(r"^  (?:-\w, )?(--\w+)", text, re.MULTILINE)))
    return found


def signatures() -> dict[str, str]:
    """Public functions, classes and their methods, with their parameters and defaults."""
    import bert_tf

    found = {}
    for name in bert_tf.__all__:
        item = getattr(bert_tf, name)
        if inspect.isclass(item):
            found[name] = _parameters(item)
            for method in METHODS if name != "BertPreprocessor" else ():  # whose are ours
                value = getattr(item, method, None)
                if (getattr(value, "__module__", None) or "").startswith("bert_tf"):
                    found[f"{name}.{method}"] = _parameters(value)
        elif callable(item):
            found[name] = _parameters(item)
    return found


def _parameters(item: Any) -> str:
    """Names and defaults; kinds of parameters by `*` and `/`, types left out."""
    signature = inspect.signature(item)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    text = str(inspect.Signature(bare))
    return re.sub(r"<([^>]*?)( at 0x[0-9a-f]+)?>", r"'\1'", text)  # a default without a literal


# Data set -> its folder of published files in ../shared/data.
PUBLISHED = {
    "cola": "glue/CoLA",
    "sst2": "glue/SST-2",
    "mrpc": "glue/MRPC",
    "rte": "glue/RTE",
    "wnli": "glue/WNLI",
    "stsb": "glue/STS",
    "conll2003": "conll2003",
    "conll2003_documents": "conll2003",
    "squad": "squad",
}


def fingerprint(task: str, path: str) -> str:
    """Of examples as a run records them in its checkpoints: one cell changed, and none resumes.

    Nothing public tells it but a checkpoint; its writer is asked.
    """
    from bert_tf.tasks.task_table import TASKS as TABLE

    return TABLE[task].read(path, "train").fingerprint()


def published(task: str, shared: Path) -> dict[str, str]:
    return {"fingerprint": fingerprint(task, str(shared / "data" / PUBLISHED[task]))}


def own(task: str) -> dict[str, str]:
    return {"fingerprint": fingerprint(task, f"data/{TASKS[task][0]}")}


def all_cases(shared: Path = SHARED) -> dict[str, Callable[[], Any]]:
    partial = functools.partial
    found: dict[str, Callable[[], Any]] = {
        "vocabulary/lower": partial(vocabulary, "--size 160 --do_lower_case"),
        "vocabulary/cased": partial(vocabulary, "--size 200"),
        "options": options,
        "signatures": signatures,
        "variables": names_of_variables,
        "initial weights": partial(initial_weights, 3),
    }
    found |= {f"shards/{name}": partial(shards, name) for name in SHARDS}
    found |= {f"fingerprint/{task}": partial(own, task) for task in TASKS}
    if shared.is_dir():
        found |= {
            f"fingerprint/{task} (published)": partial(published, task, shared)
            for task in PUBLISHED
        }
    for size, precision in itertools.product(SIZES, PRECISIONS):
        end = f"{size}/{precision}"
        names = PRETRAININGS if end == "one/float32" else ("pairs", "words")
        found |= {f"train/{x}/{end}": partial(pretrain, x, size, precision) for x in names}
        found |= {f"train/{x}/{end}": partial(finetune, x, size, precision) for x in TASKS}
    found |= {f"export/{task}": partial(export, task) for task in TASKS}
    return found


def unpack(folder: Path, archive: Path = ARCHIVE, beginning: str = "") -> None:
    with tarfile.open(archive) as file:
        members = [x for x in file.getmembers() if x.name.startswith(beginning)]
        file.extractall(folder, members, filter="data")


def main(folder: str, output: str, *patterns: str) -> None:
    output = str(Path(output).absolute())
    unpack(Path(folder))
    os.chdir(folder)
    results = {}
    for name, case in all_cases().items():
        if any(fnmatch.fnmatch(name, pattern) for pattern in patterns or ("*",)):
            try:
                results[name] = case()
            except Exception as error:
                results[name] = f"{type(error).__name__}: {error}"
            Path(output).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
