import gzip
import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml
from cases import for_each
from command_line import finished, words
from peer_programs import find_peer

from bert_tf.cli import read_options
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.pretraining_options import LATE_SHARE
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.pipelines.corpus.formats import read_slice
from bert_tf.pipelines.corpus.sources import open_corpus

RECIPES = Path(__file__).parents[1] / "recipes"
NEEDED = {"pretrain": words("--shards shards/128 --output run")}
NEEDED["finetune"] = words("--model model --train train.tsv --output run")
# Recipes of schedulers, which have the command in them, and what they pass to it.
SCHEDULERS = {
    "shards-slurm.sh": {"$SLURM_ARRAY_TASK_ID": "1", "${share[@]}": "--workers 8 --units 1/16"},
    "shards-kubernetes.yml": {"$((JOB_COMPLETION_INDEX + 1))": "16"},
}
LONG_SHARDS = ["--long_shards", "shards/512"]
REPLICAS = {"pretrain-8-gpus.yaml": 8, "pretrain-tpu-v3-8.yaml": 8}


def read(recipe):
    command = recipe.name.partition("-")[0]
    arguments = [command, "--config", str(recipe), *NEEDED[command]]
    if command == "pretrain" and "late_batch_size" not in recipe.read_text():
        arguments += LONG_SHARDS
    return read_options(command, arguments)


@for_each("recipe", *sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_recipe_can_be_run(recipe):
    options = read(recipe)
    assert f"`{recipe.name}`" in (RECIPES / "README.md").read_text()
    if isinstance(options, FinetuningOptions):
        return
    BertConfig.named(options.size, vocab_size=30_522, pad_token_id=0)
    last_share = options.late_share or options.long_share or 0.1
    before = options.steps - round(options.steps * last_share)
    for steps in (options.evaluate_every, before, options.steps):
        assert steps % options.steps_per_execution == 0
    later = options.long_gradient_accumulation_steps or 1
    for pieces in (options.gradient_accumulation_steps, later):
        assert options.batch_size % (REPLICAS.get(recipe.name, 1) * pieces) == 0


def test_a_recipe_is_found_in_another_folder(tmp_path, monkeypatch):
    """The wheel has them, too; a file of the user's own comes first."""
    monkeypatch.chdir(tmp_path)
    name = "recipes/pretrain-laptop.yaml"
    expected = read(RECIPES / "pretrain-laptop.yaml").steps
    for config in (["--config", name], [f"--config={name}"]):
        given = ["pretrain", *config, *NEEDED["pretrain"]]
        assert read_options("pretrain", given).steps == expected
    (tmp_path / "recipes").mkdir()
    (tmp_path / name).write_text("steps: 7\n")
    assert read_options("pretrain", given).steps == 7
    with pytest.raises(InputError, match=r"no-such\.yaml"):
        read_options("pretrain", ["pretrain", "--config", "recipes/no-such.yaml"])


def test_the_modern_recipe_reads_as_many_sequences_as_the_papers():
    options, paper = (read(RECIPES / f"pretrain-{name}.yaml") for name in ("modern", "base"))
    late = round(options.steps * (options.late_share or LATE_SHARE))
    assert late % (options.late_batch_size // options.batch_size) == 0
    sequences = (options.steps - late) * options.batch_size + late * options.late_batch_size
    assert sequences == paper.steps * paper.batch_size
    decay = int(options.steps * options.decay_share)
    assert options.warmup_steps + decay < late


@for_each("size", "base", "large")
def test_the_papers_pre_training(size):
    options = read(RECIPES / f"pretrain-{size}.yaml")
    assert (options.size, options.batch_size, options.steps) == (size, 256, 1_000_000)
    assert (options.learning_rate, options.weight_decay) == (1e-4, 0.01)
    assert (options.warmup_steps, options.long_share) == (10_000, None)  # 0.1


@for_each("name", *SCHEDULERS)
def test_a_recipe_of_a_scheduler_has_a_command_that_can_be_run(name):
    text = (RECIPES / name).read_text()
    assert f"`{name}`" in (RECIPES / "README.md").read_text()
    if name.endswith(".yml"):
        (container,) = yaml.safe_load(text)["spec"]["template"]["spec"]["containers"]
        text = container["args"][0]
    command = text[text.index("exec bert-tf ") + len("exec bert-tf ") :].replace("\\\n", " ")
    for variable, value in SCHEDULERS[name].items():
        command = command.replace(f'"{variable}', value).replace(variable, value).replace('"', "")
    arguments = shlex.split(command)
    options = read_options("shards", arguments)
    assert options.workers > 1
    assert options.units in ("1/16", "16/16")
    assert options.max_seq_length == [128, 512]


@pytest.mark.peer("kubernetes")
def test_kubernetes_has_every_field_of_the_manifests():
    """In 1.29, the first that retries each index of a job by default, and in the newest."""
    names = ["serving/kubernetes.yaml", "shards-kubernetes.yml"]
    for version in ("1.29.0", "1.37.0"):
        command = [find_peer("kubernetes"), "-m", "kubernetes_validate", "--strict"]
        command += ["--kubernetes-version", version, *(str(RECIPES / name) for name in names)]
        done = finished(*command)
        assert len(re.findall("passed for resource", done.stdout + done.stderr)) == 4


@pytest.mark.slow
@pytest.mark.peer("datatrove")
def test_the_recipe_for_web_text_leaves_a_corpus_and_says_what_it_dropped(shared, tmp_path):
    book = shared / "data" / "corpus" / "books" / "frankenstein.txt.gz"
    paragraphs = gzip.decompress(book.read_bytes()).decode().split("\n\n")
    prose = ["\n\n".join(paragraphs[n : n + 20]) for n in range(60, 180, 20)]
    texts = [*prose, f"{prose[0]} And so on.", "buy now " * 300]

    def run(texts, name):
        (tmp_path / name).mkdir()
        lines = (json.dumps({"text": text, "id": str(n)}) + "\n" for n, text in enumerate(texts))
        (tmp_path / name / "a.jsonl").write_text("".join(lines))
        command = [find_peer("datatrove"), str(RECIPES / "corpus-datatrove.py")]
        command += words("--tasks 2", input=tmp_path / name, output=tmp_path / f"{name}-out")
        finished(*command)
        return (tmp_path / f"{name}-out" / "report.md").read_text()

    report = run(texts, "in")
    assert "'buy now buy" in report
    assert "## duplicates: 1 documents" in report
    corpus = open_corpus(tmp_path / "in-out" / "text")
    slices = [slice_ for unit in corpus.units for slice_ in unit]
    left = [part for x in slices for part in read_slice(x, corpus.options, Counter())]
    assert sum(part.lines.count(b"") for part in left) == int(report.split()[-4])
    assert "0 documents are left." in run(["buy now " * 300], "spam")
