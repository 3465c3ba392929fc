"""Writes the archive of an earlier version and its results, by that version's checkout.

export PYTHONPATH=CHECKOUT:tests/numerics
python tests/frozen/make.py archives FOLDER
python tests/frozen/frozen_cases.py FOLDER/files FOLDER/results.json \
      'vocabulary/*' 'shards/*' 'fingerprint/*' options signatures variables
for seed in 0 1; do python tests/frozen/make.py losses FOLDER $seed; done
python tests/frozen/make.py results FOLDER 2
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import frozen_cases as cases
import numpy as np
from rounding import rounding  # tests/numerics/rounding.py

# What rounds otherwise on another machine: a float32 as the sums of a block of 64 terms, and every
# number of mixed_bfloat16 by up to half a unit.
PERTURBATION = {"float32": rounding(20, 64), "mixed_bfloat16": 2.0**-8}
ROWS = 24
PLACES = ["Bern", "Genève", "Łódź", "東京", "Graz", "Oslo"]
PEOPLE = ["Anna", "Boris", "Zoë", "Müller"]
GOOD = ["good", "fine", "lovely", "splendid"]
BAD = ["bad", "poor", "dreadful", "unwatchable"]
THINGS = ["film", "book", "story", "soup", "train", "song"]
SEASONS = ["spring", "summer", "autumn", "winter"]
draw = random.Random(0)


def pick(words: list) -> str:
    return words[int(draw.random() * len(words))]  # `choice` may differ between Pythons


def sentence() -> str:
    return pick(
        [
            f"In {pick(SEASONS)} {pick(PEOPLE)} lives in {pick(PLACES)}.",
            f"The {pick(THINGS)} was {pick(GOOD + BAD)}, and the {pick(THINGS)} wasn't!",
            f'{pick(PEOPLE)} said: "A {pick(GOOD + BAD)} {pick(THINGS)}?"',
            f"It took {int(draw.random() * 100)} days from {pick(PLACES)} to {pick(PLACES)}.",
        ]
    )


def write_table(name: str, *header: str, rows: list) -> None:
    separator = "," if name.endswith(".csv") else "\t"
    lines = [separator.join(map(str, row)) for row in [header, *rows]]
    Path("data", name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_texts() -> None:
    """A corpus, and for each task examples whose words tell their labels."""
    documents = ["\n".join(sentence() for _ in range(2 + i % 7)) for i in range(60)]
    Path("corpus.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    Path("data").mkdir()
    rows = [
        (f"a {pick([BAD, GOOD][i % 2])} {pick(THINGS)} .", ["bad", "good"][i % 2])
        for i in range(ROWS)
    ]
    write_table("classification.tsv", "text", "label", rows=rows)
    rows = []
    for i in range(ROWS):
        labels = [label for k, label in enumerate(["good", "place"]) if (i >> k) % 2]
        words = [pick(GOOD if label == "good" else PLACES) for label in labels]
        rows.append((" ".join([pick(THINGS), *words]), ",".join(labels)))
    write_table("multi_label.tsv", "text", "label", rows=rows)
    rows = []
    for i in range(ROWS):
        first, second = pick(THINGS), pick(THINGS)
        score = 1.5 if first == second else i % 3 / 4
        rows.append((f"the {first} in {pick(PLACES)}", f"a {second}", score))
    write_table("regression.csv", "text", "text_pair", "label", rows=rows)
    rows = []
    for i in range(ROWS):
        choices = [pick(BAD) for _ in range(3)]
        choices[i % 3] = pick(GOOD)
        rows.append((sentence().replace('"', "").replace(",", ""), *choices, i % 3))
    write_table("choice.csv", "context", "choices0", "choices1", "choices2", "label", rows=rows)
    rows = [
        (f"{pick(THINGS)} {pick(PLACES)} {i % 7}", f"{i % 7} {pick(SEASONS)}") for i in range(ROWS)
    ]
    write_table("embedding.tsv", "text", "text_pair", rows=rows)
    for task, (person, place, thing) in {
        "tagging": ("B-PER", "B-LOC", "O"),
        "tags": ("NAME", "NAME", "NOUN"),
    }.items():
        labels = dict.fromkeys(PEOPLE, person) | dict.fromkeys(PLACES, place)
        labels |= dict.fromkeys(THINGS, thing)
        lines = []
        for i in range(ROWS):
            words = sentence().replace(".", " .").replace(",", " ,").split()[: 4 + i % 5]
            lines += [f"{word} {labels.get(word, 'O')}" for word in words] + [""]
        Path("data", f"{task}.conll").write_text("\n".join(lines) + "\n", encoding="utf-8")
    paragraphs = []
    for i in range(ROWS):
        person, place = pick(PEOPLE), pick(PLACES)
        context = f"{sentence()} {person} lives in {place}. {sentence()}"
        start = context.index(f"{person} lives in {place}.") + len(f"{person} lives in ")
        answers = [{"text": place, "answer_start": start}] if i % 4 else []
        question = f"Where does {person if i % 4 else 'nobody'} live?"
        qas = [{"id": str(i), "question": question, "answers": answers}]
        paragraphs.append({"context": context, "qas": qas})
    data = json.dumps({"data": [{"paragraphs": paragraphs}]})
    Path("data", "squad2.json").write_text(data, encoding="utf-8")


def write_starts() -> None:
    """Untrained models of both sizes, with numbers large enough to matter."""
    from bert_tf import BertConfig, BertPreTrainer, BertTokenizer, save_model

    tokenizer = BertTokenizer.from_directory("vocabulary")
    for size, (width, layers, heads) in {"one": (8, 1, 2), "two": (24, 2, 4)}.items():
        config = BertConfig(
            vocab_size=160,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=2 * width,
            max_position_embeddings=32,
            initializer_range=0.3,
        )
        save_model(BertPreTrainer(config, seed=0), f"start/{size}", tokenizer=tokenizer)


def kill_midway(command: str, run: Path) -> None:
    """Kills a run once it has saved a checkpoint after its first evaluation."""
    code = "import sys; from bert_tf.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen([sys.executable, "-c", code, *command.split()])
    while not (run / "checkpoints" / "step-00000012.safetensors").exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()


def write_archives(folder: Path) -> None:
    folder.mkdir()
    os.chdir(folder)
    write_texts()
    cases.run(
        "vocab --corpus corpus.txt --output vocabulary --min_frequency 1 --size 160 --do_lower_case"
    )
    write_starts()
    cases.make_shards("static")
    Path("shards").rename("old_shards")
    Path("expected").mkdir()
    for name, command in cases.RESUMED.items():
        run = Path("killed", name)
        cases.run(command)
        (run / "last/model.safetensors").rename(f"expected/{name}.safetensors")
        if name != "pretraining":
            shutil.copytree(run / "best", f"fine_tuned/{name}")
        shutil.rmtree(run)
        kill_midway(command, run)
    for task in cases.TASKS:
        cases.run(cases.exporting(task, "exports"))
    with tarfile.open(cases.ARCHIVE, "w:xz", preset=9) as archive:
        for name in sorted(x.name for x in folder.iterdir() if x.name != "exports"):
            archive.add(name)
    with tarfile.open(cases.EXPORTS, "w:xz", preset=9) as archive:
        archive.add("exports")


def perturb(share: float, seed: int) -> None:
    """Changes each weight of the models in `start` by up to a share of itself."""
    from safetensors.numpy import load_file, save_file

    random = np.random.default_rng(seed)
    for size in cases.SIZES:
        path = f"start/{size}/model.safetensors"
        weights = {
            name: w * (1 + random.uniform(-share, share, w.shape)).astype("float32")
            for name, w in load_file(path).items()
        }
        save_file(weights, path, {"format": "pt"})


def write_losses(folder: Path, seed: int) -> None:
    """Losses of the frozen trainings; with a seed other than 0, after a perturbation."""
    for precision in cases.PRECISIONS:
        cases.unpack(folder / precision)
        os.chdir(folder / precision)
        if seed:
            perturb(PERTURBATION[precision], seed)
        names = [name for name in cases.FROZEN_TRAININGS if name.endswith(precision)]
        cases.main(".", str(folder / f"{precision}.json"), *names, unpacked=True)


def write_results(folder: Path, seeds: int) -> None:
    """Joins `folder`/results.json, of the other cases, with the losses of all seeds."""
    results = json.loads((folder / "results.json").read_text())
    runs: list[dict] = []
    for seed in range(seeds):
        files = [folder / str(seed) / f"{precision}.json" for precision in cases.PRECISIONS]
        runs.append({n: x for file in files for n, x in json.loads(file.read_text()).items()})
    results["losses"] = {}
    for name, result in runs[0].items():
        losses = np.array(result["losses"])
        spread = max(np.abs(run[name]["losses"] - losses).max() for run in runs[1:])
        kept = [float(f"{loss:.8g}") for loss in losses]
        results["losses"][name] = {"spread": float(f"{spread:.1e}"), "losses": kept}
    cases.ARCHIVE.with_name("06fc4d9.json").write_text(lines(results) + "\n", encoding="utf-8")


def lines(results: dict) -> str:
    """JSON with a line for each entry of a result."""
    parts = []
    for name, result in results.items():
        entries = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in result.items()]
        parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(entries) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}"


if __name__ == "__main__":
    what, folder, *more = sys.argv[1:]
    if what == "archives":
        write_archives(Path(folder).absolute())
    elif what == "losses":
        write_losses(Path(folder).absolute() / more[0], int(more[0]))
    else:
        write_results(Path(folder), int(more[0]))
