import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases import for_each, refused
from safetensors.numpy import load_file
from tiny import tiny_config

from bert_tf.commands.finetuning_run import FinetuningResult
from bert_tf.errors import InputError
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.paper import data_stages, stage, tables, training_stages
from bert_tf.paper.data_stages import Corpus, TaskData
from bert_tf.paper.language_model import BertLanguageModel
from bert_tf.paper.plan import Plan, task_data
from bert_tf.paper.reproduce import Reproduction
from bert_tf.paper.stage import Cache
from bert_tf.paper.tables import PAPER, PERPLEXITY, SMALL, TABLES, Column, PaperTable, System
from bert_tf.pipelines.data_options import CorpusOptions
from bert_tf.text.answerer import Evaluation
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.resuming import TrainingState, load_weights
from bert_tf.training.trainer import Trainer

TOY_SCALE = replace(
    SMALL,
    vocabulary_size=60,
    lengths=(16,),
    seeds=2,
    checkpoint_every=4,
    shards={**SMALL.shards, "held_out_share": 0.2, "num_shards": 1},
    pretraining={**SMALL.pretraining, "size": "1x16x2", "batch_size": 4, "steps": 8}
    | {"evaluate_every": 4, "evaluation_batches": 1, "precision": "float32"},
    finetuning={**SMALL.finetuning, "batch_size": [8], "epochs": [1]}
    | {"max_length": 8, "precision": "float32"},
    tasks={},
)

TOY_TABLE = PaperTable(
    name="toy",
    title="Toys",
    source="no table",
    systems=lambda scale: [System(name="best"), System(name="after 4 steps", step=4)],
    columns=[Column(*x) for x in (("Acc", "classification"), ("QNLI", "qnli"), (PERPLEXITY, ""))],
    numbers={"best": [12.5, 1.0], "human": [99.0]},
)

_SENTENCES = {"wet": "the ship sailed the deep sea .", "dry": "a cow ate grass on the farm ."}


class Killed(BaseException):
    """As SIGKILL: nothing of ours catches it."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    orders = itertools.islice(itertools.product(_SENTENCES.values(), repeat=6), 60)
    documents = ["\n".join(sentences) + "\n" for sentences in orders]  # no two alike
    (folder / "corpus.txt").write_text("\n".join(documents))
    rows = [f"{text}\t{label}" for label, text in _SENTENCES.items()] * 12
    for split in ("train", "validation"):
        (folder / f"{split}.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    return folder


def toy(data, output, table=TOY_TABLE, scale=TOY_SCALE):
    corpus = Corpus(named=[str(data / "corpus.txt")], options=CorpusOptions())
    tasks = task_data([f"classification={data}/train.tsv,{data}/validation.tsv"])
    return Reproduction(Plan(table, scale, corpus, tasks), str(output))


def planned_on_documentation(table, scale, tasks=()):
    corpus = Corpus(named=[], options=CorpusOptions())
    return Plan(table, scale, corpus, tasks or task_data([]))


def make(reproduction):
    """Makes a table; returns the kinds of stages that were made."""
    made = []

    def started(stage, number, total):
        made.append(type(stage).__name__)
        return lambda completed, total=None: None

    return made, reproduction.make(started)


EXTENSIONS = ("md", "json", "png")
RATES = SMALL.finetuning["learning_rate"]


def learned(options, listener):
    """A fine-tuning without training: the last rate is best with the first seed, then the worst."""
    best = Path(options.output) / "best"
    best.mkdir(parents=True, exist_ok=True)
    (best / "model").write_text("")
    is_last = options.learning_rate == RATES[-1]
    score = (0.75 if is_last else 0.5) if options.seed == 1 else (0.25 if is_last else 0.5)
    evaluation = Evaluation(None, {"accuracy": score}, [])
    sizes = {"train_examples": 8, "evaluations": 3}
    return FinetuningResult(training=None, best_by="accuracy", evaluation=evaluation, **sizes)


@pytest.fixture
def no_finetuning(monkeypatch):
    monkeypatch.setattr(training_stages, "run_finetuning", learned)


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("output")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_stages, "run_finetuning", learned)
        kinds, rows = make(toy(data, output))
    assert kinds == ["Vocabulary", "Shards", "Pretraining", "Finetuning", "Finetuning"]
    return output, rows


@pytest.mark.slow
def test_the_result(made):
    output, rows = made
    assert {x.name for x in (output / "toy").iterdir()} == {f"table.{x}" for x in EXTENSIONS}
    header = ["system", "Acc", "paper", "QNLI", "paper", f"{PERPLEXITY}, not in the paper"]
    assert rows[0] == header
    names = [row[0] for row in rows[1:]]
    assert names == ["best", "after 4 steps", "human"]
    by_name = {row[0]: row[1:] for row in rows[1:]}
    assert by_name["best"][1:4] == ["12.5", "not run here", "1"]
    assert by_name["after 4 steps"][1] == "not in the paper"
    not_run = "not run here"
    assert by_name["human"] == [not_run, "99", not_run, "not in the paper", not_run]
    table = json.loads((output / "toy" / "table.json").read_text())
    score = table["rows"][0]["scores"]["Acc"]
    assert score["scores"] == [75, 25] and table["seeds"] == [1, 2]  # of the rate chosen by seed 1
    assert score["setting"] == f"batch size 8, learning rate {RATES[-1]:g}, 1 epoch"
    assert by_name["best"][0] == "50.0 ± 35.4"
    # The same pre-training, looked at earlier.
    assert table["rows"][0]["scores"][PERPLEXITY] == table["rows"][1]["scores"][PERPLEXITY]
    # Eight steps are too few: the reader is told.
    page = " ".join((output / "toy" / "table.md").read_text().split())
    assert "each is the best of a run's evaluations on the validation examples" in page
    assert "best of 3 evaluations" in page
    scores = table["held_out"]["pre-training: BERT"]
    assert f"| pre-training: BERT | {scores['step']} | {scores['mlm_loss']:.2f} |" in page
    assert "Learned little but how frequent words are: pre-training: BERT." in page
    output, _ = made
    (folder,) = (output / "runs").glob("pretraining-*/")
    last, kept = (load_file(folder / name / "model.safetensors") for name in ("last", "step-8"))
    assert last.keys() == kept.keys()
    assert all(np.array_equal(last[name], kept[name]) for name in last)


@pytest.mark.slow
def test_more_seeds_are_added_and_outcomes_that_were_not_written(made, data, tmp_path, monkeypatch):
    output, rows = made
    shutil.copytree(output, tmp_path, dirs_exist_ok=True)
    tuned = []
    monkeypatch.setattr(
        training_stages, "run_finetuning", lambda *x: tuned.append(x[0].seed) or learned(*x)
    )
    kinds, more = make(toy(data, tmp_path, scale=replace(TOY_SCALE, seeds=3)))
    assert kinds == ["Finetuning"] * 2 and tuned == [3, 3]
    assert more[1][1] == "41.7 ± 28.9"
    kinds, fewer = make(toy(data, tmp_path))
    assert kinds == [] and fewer == rows
    # Killed between the last file of a run and its outcome.
    for kind in ("vocabulary", "shards"):
        (record,) = (tmp_path / "runs").glob(f"{kind}-*.json")
        record.unlink()
    kinds, same = make(toy(data, tmp_path))
    assert kinds == ["Vocabulary", "Shards"] and same == rows


KILLS = (("save_model", 1), ("load_weights", 2), ("write_json", 1), ("run_finetuning", 2))


@pytest.mark.slow
def test_a_table_that_is_killed_again_and_again_goes_on(made, data, tmp_path, no_finetuning):
    """Killed before an outcome is written, between and within two runs."""

    def killed_at(at, whole):
        calls = []

        def called(*arguments, **named):
            calls.append(arguments)
            if len(calls) == at:
                raise Killed
            return whole(*arguments, **named)

        return called

    # What was made so far is the same: begin with it.
    output, _ = made
    shutil.copytree(output / "runs", tmp_path / "runs")
    records = {path.name.partition("-")[0]: path for path in (tmp_path / "runs").glob("*.json")}
    for kind in ("pretraining", "finetuning"):
        for path in (tmp_path / "runs").glob(f"{kind}-*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert {"vocabulary", "shards"} <= records.keys()
    finished = []
    for name, at in KILLS:
        module = stage if name == "write_json" else training_stages
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(module, name, killed_at(at, getattr(module, name)))
            make(toy(data, tmp_path))
        finished.append(sum(line.is_done for line in toy(data, tmp_path).estimate()))
    assert finished == [2, 2, 2, 3]
    kinds, _ = make(toy(data, tmp_path))
    assert kinds == ["Finetuning", "Finetuning"]
    same = (tmp_path / "toy" / "table.json").read_bytes()
    assert same == (output / "toy" / "table.json").read_bytes()


def test_a_checkpoint_of_lstms_is_read_into_a_model_of_them(tmp_path):
    """Keras names their cells by itself."""
    config = tiny_config(7, attention_direction="recurrent")
    model, other = (BertLanguageModel(config, seed=seed) for seed in (1, 2))
    losses = dict.fromkeys(model.output, cross_entropy)
    trainer = Trainer(model, AdamWeightDecay(), loss=losses)
    load_weights(other, TrainingState(trainer, tmp_path, settings={}).save())
    for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_options_change_the_name_of_a_run_and_content_counts(data, tmp_path):
    def names(folder, **options):
        scale = replace(TOY_SCALE, pretraining={**TOY_SCALE.pretraining, **options})
        plan = toy(folder, tmp_path / "out", scale=scale).plan
        return {stage.title: stage.name for stage in plan.stages}

    plain = names(data)
    changed = names(data, learning_rate=1e-5)
    assert changed["shards"] == plain["shards"]
    assert changed["pre-training: BERT"] != plain["pre-training: BERT"]
    assert names(data, log_every=7) == plain

    moved = tmp_path / "moved"
    moved.mkdir()
    for path in data.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    assert names(moved) == plain
    train = moved / "train.tsv"
    train.write_text(train.read_text().replace("grass", "hay"))
    other = names(moved)
    assert other["pre-training: BERT"] == plain["pre-training: BERT"]
    assert other["fine-tuning: best, Acc"] != plain["fine-tuning: best, Acc"]


def test_typos_and_damaged_records_are_named(data, tmp_path):
    system = System(name="x", pretraining={"learning_rat": 1})
    typo = replace(TOY_TABLE, systems=lambda scale: [system])
    with pytest.raises(TypeError, match="learning_rat"):
        toy(data, tmp_path, typo).estimate()
    reproduction = toy(data, tmp_path)
    first = reproduction.plan.stages[0]
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / f"{first.name}.json").write_text("{")
    with pytest.raises(InputError, match="delete it to repeat the run"):
        Cache(tmp_path / "runs").outcome(first)


@for_each(
    "tasks message",
    ("mrpc", "give TASK=FOLDER"),
    ("mprc=here", "did you mean mrpc"),
    ("masked_words=here", "no task to fine-tune on"),
    ("mrpc={folder}", "lacks train.tsv"),
)
def test_tasks_that_cannot_be_used(tasks, message, tmp_path):
    refused(message, task_data, [tasks.format(folder=tmp_path)])


def test_nothing_held_out(data, tmp_path):
    (tmp_path / "corpus.txt").write_text("the ship .\na cow .\n\nthe sea .\n" * 60)
    corpus = Corpus(named=[str(tmp_path / "corpus.txt")], options=CorpusOptions())
    scale = replace(TOY_SCALE, shards={**TOY_SCALE.shards, "held_out_share": 0.0})
    tasks = task_data([f"classification={data}/train.tsv"])
    reproduction = Reproduction(Plan(TOY_TABLE, scale, corpus, tasks), str(tmp_path / "out"))
    refused("no text was held out", make, reproduction)


@for_each("scale", SMALL, PAPER, ids=lambda scale: scale.name)
@for_each("table", *TABLES.values(), ids=lambda table: table.name)
def test_every_table_plans(table, scale, monkeypatch):
    """With examples of every task of the table."""
    names = list(dict.fromkeys(column.task for column in table.columns if column.task))
    monkeypatch.setattr(data_stages, "data_content", lambda options: options.task)
    tasks = [TaskData(name, "folder") for name in names]
    plan = planned_on_documentation(table, scale, tasks)
    assert len({system.name for system in plan.systems}) == len(plan.systems)
    assert len(plan.cells) == len(plan.systems) * len(plan.columns)
    assert plan.pretrainings
    assert all(stage.options.seeds == scale.seeds for stage in plan.finetunings)
    if scale is PAPER and table.published:  # the paper's rows are those that are run
        ours = {system.name for system in plan.systems}
        assert ours & table.published.keys()
        titles = {title for row in table.published.values() for title in row}
        assert {column.title for column in plan.columns} >= titles


def test_the_ablations_share_berts_pre_training():
    """In all but the one on layers, at the small scale."""
    names = ("pretraining-tasks", "model-size", "training-steps", "masking", "recipe")
    shared = []
    for name in names:
        plan = planned_on_documentation(TABLES[name], SMALL)
        shared.append({stage.name for stage in plan.pretrainings})
    assert len(set.intersection(*shared)) == 1


@for_each("scale", SMALL, PAPER, ids=lambda scale: scale.name)
def test_the_recipes_read_as_many_sequences(scale):
    plan = planned_on_documentation(TABLES["recipe"], scale)
    trained = [stage.options for stage in plan.pretrainings]
    assert len({options.steps * options.mean_batch_size for options in trained}) == 1
    late = {options.late_batch_size for options in trained} - {None}
    assert late == ({96} if scale is SMALL else set())  # the paper's has long sequences late


def test_a_run_that_another_version_would_make_otherwise(data, tmp_path, monkeypatch):
    """A default that has changed, or the order of the data; older records say neither."""
    reproduction = toy(data, tmp_path)
    run = reproduction.plan.pretrainings[0]
    cache = Cache(tmp_path / "runs")
    monkeypatch.setattr(type(run), "make", lambda *arguments: {"held_out": {}})
    cache.make(run, None)
    assert cache.outcome(run) == {"held_out": {}}
    record = tmp_path / "runs" / f"{run.name}.json"
    content = json.loads(record.read_text())
    for name, value in (("version", 0), ("weight_decay", [0.5])):
        changed = {**content, "made_with": {**content["made_with"], name: value}}
        record.write_text(json.dumps(changed))
        refused(rf"was made with {name} .*: delete it and", cache.outcome, run)
    del content["made_with"]
    record.write_text(json.dumps(content))
    assert cache.outcome(run) == {"held_out": {}}


@for_each(
    "arguments message",
    ("model-sise", "there is no table 'model-sise': did you mean model-size? There are glue"),
    ("glue --tasks mrpc=nowhere", "nowhere does not exist: check the path"),
    ("glue --scale paper --corpus CORPUS", "MB of text are too few to pre-train on"),
)
def test_what_is_named_before_it_starts(arguments, message, corpus, tmp_path, call):
    line = f"reproduce {arguments.replace('CORPUS', str(corpus))}"
    assert message in call.refused(line, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def toy_scale(monkeypatch):
    toy = replace(
        TOY_SCALE,
        vocabulary_size=500,
        seeds=1,
        finetuning=TOY_SCALE.finetuning | {"learning_rate": [1e-3]},
        training_steps=(4,),
        sizes={"1 layer": {"size": "1x16x2"}, "2 layers": {"size": "2x16x2"}},
    )
    monkeypatch.setitem(tables.SCALES, "small", toy)


def test_a_full_disk_is_named_first(corpus, labelled, tmp_path, call, monkeypatch, toy_scale):
    class Usage:
        free = 1

    monkeypatch.setattr("bert_tf.paper.reproduce.shutil.disk_usage", lambda place: Usage)
    speed = "bert_tf.paper.step_speed._pretraining_seconds"
    monkeypatch.setattr(speed, lambda *arguments: 0.1)
    tasks, output = f"classification={labelled}/train.tsv", tmp_path / "out"
    given = {"corpus": corpus, "tasks": tasks, "output": output}
    _, shown = call("reproduce model-size --dry_run", **given)
    told = call.refused("reproduce model-size", announced=tuple(shown.splitlines()), **given)
    assert "0.0 GB are free: free some space" in told
    assert "pre-training: size 2x16x2" in shown and "in all on this machine" in shown
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_table_from_the_command_line(corpus, labelled, tmp_path, call, toy_scale):
    tasks = f"classification={labelled}/train.tsv,{labelled}/test.tsv"
    given = {"corpus": corpus, "tasks": tasks, "output": tmp_path}
    out, err = call("reproduce training-steps", **given)
    assert "measuring a step of 4 x 16 tokens, 1 layer(s) 16 wide" in err
    assert "run 6 of 6: fine-tuning: LTR, 4 steps, classification" in err
    folder = tmp_path / "training-steps"
    assert f"Table, settings and picture: {folder}/table.md, table.json, table.png" in err
    assert out.strip() in (folder / "table.md").read_text()
    made = (folder / "table.json").read_bytes()
    scores = json.loads(made)["rows"][1]["scores"]
    assert len(scores["classification"]["scores"]) == 1

    again, err = call("reproduce training-steps", **given)
    assert again == out and "run 1 of" not in err and "measuring" not in err
    assert (folder / "table.json").read_bytes() == made
