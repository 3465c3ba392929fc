"""The search: what it tries, in which order, what it keeps, how it goes on. No run trains here."""

import itertools
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
from cases import for_each, refused
from PIL import Image
from watchers import Lines

from bert_tf import BertTokenizer
from bert_tf.commands import search as search_command
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning_run import FinetuningResult
from bert_tf.commands.search import Options as SearchOptions
from bert_tf.commands.search import SearchResult
from bert_tf.commands.seeds import finetune_seeds
from bert_tf.commands.settings_search import Setting, picture, ranked, search, table
from bert_tf.errors import InputError
from bert_tf.files.atomic import hold_output, write_text
from bert_tf.files.owners import RUN, Mark
from bert_tf.tasks.reports.tables import markdown
from bert_tf.text.answerer import Evaluation
from bert_tf.training.loop import DivergedError

BEST = 3e-5


class KilledError(Exception):
    pass


class Runs:
    """Runs that are best at `BEST`, late epochs and large seeds; they are counted."""

    def __init__(self, killed_at: int | None = None) -> None:
        self.made: list[str] = []
        self.killed_at = killed_at

    def __call__(self, options, watcher=None) -> FinetuningResult | None:
        if options.dry_run:
            return None
        folder = Path(options.output)
        Mark.of(folder, RUN).write()
        (folder / "checkpoints").mkdir(exist_ok=True)
        if len(self.made) == self.killed_at:
            raise KilledError
        self.made.append(f"{folder.parent.name}/{folder.name}")
        if options.learning_rate > 1e-2:
            raise DivergedError("step 3: non-finite loss")
        score = 1 - abs(options.learning_rate - BEST) * 1e4 + options.epochs / 100
        score += options.batch_size / 10_000 + options.seed / 1000
        with hold_output(folder, Mark.of(folder, RUN)):
            for name in ("best", "last"):
                write_text(folder / name / "model.safetensors", self.made[-1])
        scores = {"examples": 8, "f1": score, "accuracy": score / 2, "pearson": None}
        sizes = {"train_examples": 8, "evaluations": options.epochs}
        evaluation = Evaluation(None, scores, [])
        return FinetuningResult(training=None, best_by="f1", evaluation=evaluation, **sizes)


@pytest.fixture
def options(tmp_path) -> SearchOptions:
    model = model_of(tmp_path / "model", "weights")
    return SearchOptions(model=model, train="train.tsv", output=str(tmp_path / "run"), seed=1)


@pytest.fixture
def one_setting(options) -> SearchOptions:
    return replace(options, batch_size=[16], learning_rate=[BEST], epochs=[3])


def model_of(folder: Path, text: str) -> str:
    folder.mkdir()
    (folder / "model.safetensors").write_text(text)
    BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea"]).save(folder)
    return str(folder)


@pytest.fixture(autouse=True)
def blank_pictures(monkeypatch) -> None:
    """A search draws one after each run, and Matplotlib takes a quarter of a second for it."""

    def blank(trials) -> np.ndarray:
        return np.zeros((1, 1 + len(ranked(trials)), 3), np.uint8)

    monkeypatch.setattr("bert_tf.commands.settings_search.picture", blank)


def tried(options, run=None) -> list[Setting]:
    trials = search(options, Lines(), run or Runs())
    return [trial.setting for trial in trials]


class Changing(Runs):
    """Runs of three rates: the first is best with seed 1, the last with further seeds."""

    scores: ClassVar = {5e-5: (0.9, 0.1, 0.1), 4e-5: (0.8, 0.2, 0.2), 2e-5: (0.7, 0.9, 0.8)}

    def __call__(self, options, watcher=None):
        result = super().__call__(options)
        scores = self.scores[options.learning_rate]
        result.evaluation.scores["f1"] = scores[options.seed - 1]
        return result


class Tied(Runs):
    """Runs of equal scores, with losses by learning rate and seed."""

    def __init__(self, losses: dict[tuple[float, int], float | None], **result) -> None:
        super().__init__()
        self.losses, self.result = losses, result

    def __call__(self, options, watcher=None):
        result = super().__call__(options)
        result.evaluation.scores["f1"] = 1.0
        loss = self.losses[options.learning_rate, options.seed]
        return replace(result, loss=loss, **self.result)


@for_each(
    "best_by losses expected",
    *((x, [0.3, 0.2, 0.1, 0.2], "rate-2e-05_epochs-1/seed-1") for x in ("f1", "loss")),
    *((x, [0.1, 0.2, 0.4, 0.1], "rate-5e-05_epochs-1/seed-1") for x in ("f1", "loss")),
    *((x, [0.2, 0.2, 0.2, 0.2], "rate-2e-05_epochs-1/seed-2") for x in ("f1", "loss")),
    ("f1", [None, None, None, None], "rate-2e-05_epochs-1/seed-2"),
)
def test_of_equal_scores_the_lower_loss_or_the_later_wins(options, best_by, losses, expected):
    """The mean over seeds chooses the setting; `losses` are of two settings with two seeds."""
    rates = (5e-5, 2e-5)
    options = replace(options, batch_size=[8], learning_rate=[*rates], epochs=[1], seeds=2)
    by_run = dict(zip([(rate, seed) for rate in rates for seed in (1, 2)], losses, strict=True))
    search(options, Lines(), Tied(by_run, best_by=best_by))
    assert best(Path(options.output)) == f"batch-8_{expected}"
    search(options, Lines(), Runs())  # what its file remembers
    assert best(Path(options.output)) == f"batch-8_{expected}"


def best(output: Path) -> str:
    return (output / "best" / "model.safetensors").read_text()


def models(output: Path) -> set[str]:
    files = output.glob("batch-*/seed-*/best/model.safetensors")
    return {str(file.parent.parent.relative_to(output)) for file in files}


def test_no_model_is_deleted_while_a_setting_lacks_seeds(options):
    options = replace(options, batch_size=[8], learning_rate=[*Changing.scores], epochs=[1])
    output, watcher = Path(options.output), Lines()
    search(options, watcher, Changing())
    first = "batch-8_rate-5e-05_epochs-1/seed-1"
    assert models(output) == {first}
    assert json.loads((output / "search.json").read_text())["best"] == first
    assert watcher.notices == [f"best/ is the best model of {first}"]

    # Killed when the first setting, now the worst, has all its seeds.
    more = replace(options, seeds=3)
    with pytest.raises(KilledError):
        search(more, Lines(), Changing(killed_at=2))
    assert models(output) >= {first}
    assert best(output) == first
    search(more, watcher, Changing())
    last = "batch-8_rate-2e-05_epochs-1/seed-2"
    assert models(output) == {last}
    assert best(output) == json.loads((output / "search.json").read_text())["best"] == last
    assert watcher.notices[1:] == [f"best/ is the best model of {last}"]


def test_a_best_setting_whose_model_was_deleted_is_said_to_be_so(options):
    """One setting alone gets more seeds, and falls behind one whose model is gone."""
    options = replace(options, batch_size=[8], learning_rate=[5e-5, 4e-5], epochs=[1])
    output, watcher, more = Path(options.output), Lines(), Changing()
    search(options, Lines(), Changing())
    search(replace(options, learning_rate=[5e-5], seeds=3), watcher, more)
    assert more.made == [f"batch-8_rate-5e-05_epochs-1/seed-{seed}" for seed in (2, 3)]
    first = "batch-8_rate-5e-05_epochs-1/seed-1"
    assert models(output) == {first}
    assert best(output) == first
    assert watcher.notices[0] == f"best/ is the best model of {first}"
    assert "learning rate 4e-05" in watcher.notices[1] and "were deleted" in watcher.notices[1]


def test_the_grid_is_the_papers_and_features_have_rates_of_their_own(options):
    runs = Runs()
    settings = tried(options, runs)
    grid = itertools.product((16, 32), (5e-5, 4e-5, 3e-5, 2e-5), (2, 3, 4))
    assert settings == [Setting(*values) for values in grid]
    assert len(runs.made) == 24
    output = Path(options.output)
    # The best model alone is kept, beside the logs of all.
    assert best(output) == "batch-32_rate-3e-05_epochs-4/seed-1"
    kept = {path.parent.parent for path in output.rglob("model.safetensors")}
    assert kept == {output, output / best(output)}
    assert not [*output.rglob("checkpoints"), *output.rglob("last")]
    options = replace(options, batch_size=[32], epochs=[3], features_only="concat_last_four")
    for given, rates in (({}, [3e-3, 1e-3, 3e-4, 1e-4]), ({"learning_rate": [1e-3]}, [1e-3])):
        options = replace(options, **given, output=f"{options.output}-2")
        assert [setting.learning_rate for setting in tried(options)] == rates


def test_settings_are_ranked_by_the_mean_over_seeds(options, monkeypatch):
    monkeypatch.setattr("bert_tf.commands.settings_search.picture", picture)
    options = replace(options, batch_size=[16], learning_rate=[5e-5, BEST], epochs=[3], seeds=3)
    trials = search(options, Lines(), Runs())
    rows = table(trials)
    columns = "batch size,learning rate,epochs,f1,deviation,runs,evaluations,accuracy"
    assert rows[0] == columns.split(",")
    assert rows[1] == ["16", "3e-05", "3", "1.034", "0.001", "1.033 1.034 1.035", "3 3 3", "0.5168"]
    assert rows[2][:4] == ["16", "5e-05", "3", "0.8336"]
    output = Path(options.output)
    assert best(output).endswith("rate-3e-05_epochs-3/seed-3")
    text = (output / "search.md").read_text()
    assert text.startswith(markdown(rows) + "\n")
    assert "Each run is the best of 3 evaluations on the validation examples" in text
    lines = (output / "search.tsv").read_text().splitlines()
    assert [line.split("\t") for line in lines] == rows
    with Image.open(output / "search.png") as image:
        assert image.format == "PNG" and image.size == (640, 500)


@for_each("trials", None, 4)
@for_each("killed_at", 0, 3, 4)
def test_a_killed_search_repeats_no_finished_run(options, tmp_path, trials, killed_at):
    """Runs 0, 2, 4 ... begin a trial; run 3 is in the middle of one."""
    options = replace(options, batch_size=[16], epochs=[2], trials=trials, seeds=2)
    undisturbed, first, second = Runs(), Runs(killed_at), Runs()
    search(replace(options, output=str(tmp_path / "other")), Lines(), undisturbed)
    with pytest.raises(KilledError):
        search(options, Lines(), first)
    search(options, Lines(), second)
    assert first.made + second.made == undisturbed.made
    for name in ("search.tsv", "search.png"):
        outputs = (Path(options.output) / name, tmp_path / "other" / name)
        assert outputs[0].read_bytes() == outputs[1].read_bytes()


def test_a_finished_search_runs_nothing_and_can_be_extended(options):
    options = replace(options, batch_size=[16], learning_rate=[5e-5, BEST], epochs=[3])
    tried(options)
    again = Runs()
    assert len(tried(options, again)) == 2 and again.made == []
    # More seeds of the settings tried, a further value, and proposals that know all of these.
    tried(replace(options, seeds=2), again)
    assert [name.partition("/")[2] for name in again.made] == ["seed-2", "seed-2"]
    assert len(tried(replace(options, learning_rate=[5e-5, BEST, 2e-5]), again)) == 3
    settings = tried(replace(options, learning_rate=[5e-5, 2e-5], trials=5), again)
    assert len(set(settings)) == 5 and len(again.made) == 2 + 1 + 2
    first, *_ = ranked(search(options, Lines(), Runs()))
    assert best(Path(options.output)).startswith(first.setting.folder)


def test_proposals_lie_in_the_ranges_and_close_in_on_the_best_until_none_is_left(options):
    options = replace(options, learning_rate=[1e-6, 1e-3], epochs=[1, 5], trials=40, keep_models=3)
    settings = tried(options)
    assert len(set(settings)) == 40
    assert {setting.batch_size for setting in settings} == {16, 32}
    assert all(1e-6 <= setting.learning_rate <= 1e-3 for setting in settings)
    assert {setting.epochs for setting in settings} <= {1, 2, 3, 4, 5}

    # Drawn at random, a fifth would be within a factor of 2 of the best.
    near = [setting for setting in settings[20:] if BEST / 2 <= setting.learning_rate <= 2 * BEST]
    assert len(near) >= 8
    assert len([*Path(options.output).rglob("model.safetensors")]) == 1 + 3
    assert json.loads((Path(options.output) / "search.json").read_text())["trials"]
    other = f"{options.output}-2"
    options = replace(options, learning_rate=[3e-5], epochs=[2, 3], trials=9, output=other)
    trials = search(options, watcher := Lines(), Runs())
    assert len(trials) == 4
    assert "4 of 9 trials were made: no further setting was found" in watcher.notices[0]


def test_a_diverged_run_is_ranked_last(options):
    options = replace(options, batch_size=[16], learning_rate=[0.1, BEST], epochs=[3])
    watcher = Lines()
    trials = search(options, watcher, Runs())
    assert "learning rate 0.1" in watcher.notices[0] and "non-finite" in watcher.notices[0]
    assert [row[1:4] for row in table(trials)[1:]] == [["3e-05", "3", "1.033"], ["0.1", "3", "-"]]
    assert tried(options, again := Runs()) and again.made == []
    assert "Best setting" in str(SearchResult(output=Path(options.output), trials=trials))
    diverged = [trial for trial in trials if trial.setting.learning_rate == 0.1]
    line = str(SearchResult(output=Path(options.output), trials=diverged))
    assert line == "Every run diverged: give smaller --learning_rate values"


def test_a_score_that_no_run_has(one_setting, capsys, monkeypatch):
    """F1 of a type of entities that is in no validation example and no answer."""

    class Undefined(Runs):
        def __call__(self, options, watcher=None):
            return replace(super().__call__(options), best_by="f1_LOC")

    monkeypatch.setattr("bert_tf.commands.finetuning_run.run_finetuning", Undefined())
    small = replace(one_setting, verbose=True)
    search_command.show(search_command.run(small), small)
    err = capsys.readouterr().err
    assert "seed 1: f1_LOC undefined" in err and "give --best_by another" in err


@for_each(
    "changed told",
    ({"weight_decay": 0.5, "train": "other.tsv"}, "--weight_decay, --train"),
    ({"train": None, "data": "glue/RTE", "text_column": "1"}, "--data, --train, --text_column"),
    ({"model": "other"}, "content of --model"),
    ({"teacher": "other"}, "content of --teacher"),
    ({"teacher": None}, "content of --teacher"),
    ({"max_length": 64}, "--max_length"),
    ({"long_texts": "windows"}, "--long_texts"),
)
def test_runs_that_learn_otherwise_are_not_compared(one_setting, tmp_path, changed, told):
    made = {name: model_of(tmp_path / name, name[:5]) for name in ("teacher", "other", "teach")}
    options = replace(one_setting, teacher=made["teacher"])
    tried(options)
    # The same teacher elsewhere, and the task's own length.
    tried(replace(options, teacher=made["teach"], max_length=128))
    changed = {name: made.get(value, value) for name, value in changed.items()}
    refused(f"a search with another {told}: give the same", tried, replace(options, **changed))
    assert len(tried(replace(options, **changed, override=True))) == 1


def test_a_search_that_cannot_be_is_refused(one_setting):
    with pytest.raises(InputError, match="a search and --strategy multi_worker cannot be combined"):
        tried(replace(one_setting, strategy="multi_worker"))
    tried(one_setting)
    (Path(one_setting.model) / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    refused("another vocabulary or tokenizer of --model", tried, one_setting)
    (Path(one_setting.output) / "search.json").write_text("{")
    refused(r"search\.json cannot be read", tried, one_setting)


def test_dry_runs_and_refused_first_runs_leave_nothing(options, tmp_path):
    watcher = Lines()
    assert search(replace(options, dry_run=True), watcher, Runs()) == []
    assert watcher.notices == ["The search has 24 settings with 1 run(s) each"]
    assert not (tmp_path / "run").exists()

    def refuse(one, watcher):
        raise InputError("there is no such data")

    refused("no such data", search, options, Lines(), refuse)
    assert [path.name for path in Path(options.output).iterdir()] == [".lock"]


@pytest.fixture
def seeds(options) -> FinetuningOptions:
    output = options.output
    settings = {"learning_rate": BEST, "batch_size": 32, "epochs": 3}
    return FinetuningOptions(model="m", train="t", output=output, seed=1, seeds=3, **settings)


def test_seeds_of_which_one_diverges(seeds):
    class Second(Runs):
        def __call__(self, options, watcher=None):
            if options.seed == 2:
                raise DivergedError("step 3: non-finite loss")
            return super().__call__(options)

    watcher = Lines()
    restarts = finetune_seeds(seeds, watcher, Second())
    assert watcher.notices == ["seed 2 diverged: step 3: non-finite loss"]
    assert restarts.best_seed == 3 and restarts.summary()["f1"]["runs"] == 2
    output = Path(seeds.output)
    assert best(output) == "run/seed-3"
    *_, last = restarts.lines()
    assert last.endswith("the best of 3 evaluations")
    assert list(json.loads((output / "seeds.json").read_text())["f1"]["scores"]) == ["1", "3"]
    other = replace(seeds, learning_rate=0.1)
    refused("with another --learning_rate: give the same", finetune_seeds, other, watcher, Runs())
    with pytest.raises(DivergedError, match="every seed diverged: give a smaller --learning_rate"):
        finetune_seeds(replace(other, output=f"{output}-2"), watcher, Runs())
    finetune_seeds(replace(seeds, output=f"{output}-2", seed=2), watcher, Runs())
    (output / "best" / "NOTES.md").write_text("theirs")
    for seed in (1, 3):
        shutil.rmtree(output / f"seed-{seed}")
    refused(r"best/NOTES\.md: would be replaced", finetune_seeds, seeds, watcher, Runs())
    assert (output / "best" / "NOTES.md").exists()


def test_two_commands_do_not_share_an_output(seeds):
    class Nested(Runs):
        def __call__(self, options, watcher=None):
            refused("another process is training there", finetune_seeds, seeds, Lines(), Runs())
            return super().__call__(options)

    assert finetune_seeds(seeds, Lines(), Nested()).best_seed == 3
