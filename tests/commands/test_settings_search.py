"""The search: what it tries, in which order, what it keeps, how it goes on. No run trains here."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
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
from bert_tf.models.answerer import Evaluation
from bert_tf.tasks.reports.tables import markdown
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
        return FinetuningResult(
            training=None,
            best_by="f1",
            evaluation=Evaluation(None, scores, []),
            train_examples=8,
            evaluations=options.epochs,
        )


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


def best(output: Path) -> str:
    """The run that best/ is a copy of."""
    return (output / "best" / "model.safetensors").read_text()


def models(output: Path) -> set[str]:
    """The runs whose models are there."""
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


def test_the_grid_is_the_papers(options):
    runs = Runs()
    settings = tried(options, runs)
    assert settings == [
        Setting(batch, rate, epochs)
        for batch in (16, 32)
        for rate in (5e-5, 4e-5, 3e-5, 2e-5)
        for epochs in (2, 3, 4)
    ]
    assert len(runs.made) == 24
    output = Path(options.output)
    # The best model alone is kept, beside the logs of all.
    assert best(output) == "batch-32_rate-3e-05_epochs-4/seed-1"
    kept = {path.parent.parent for path in output.rglob("model.safetensors")}
    assert kept == {output, output / best(output)}
    assert not [*output.rglob("checkpoints"), *output.rglob("last")]


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


@pytest.mark.parametrize("trials", [None, 4])
@pytest.mark.parametrize("killed_at", [0, 3, 4])
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


def test_a_search_whose_first_run_is_refused_leaves_nothing(options):
    def refused(one, watcher):
        raise InputError("there is no such data")

    with pytest.raises(InputError, match="no such data"):
        search(options, Lines(), refused)
    assert [path.name for path in Path(options.output).iterdir()] == [".lock"]


def test_proposals_lie_in_the_ranges_and_close_in_on_the_best(options):
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


def test_too_few_settings_for_the_trials_end_the_search(options):
    options = replace(options, learning_rate=[3e-5], epochs=[2, 3], trials=9)
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


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"weight_decay": 0.5, "train": "other.tsv"}, "--weight_decay, --train"),
        ({"train": None, "data": "glue/RTE", "text_column": "1"}, "--data, --train, --text_column"),
        ({"model": "other"}, "content of --model"),
        ({"teacher": "other"}, "content of --teacher"),
        ({"teacher": None}, "content of --teacher"),
        ({"max_length": 64}, "--max_length"),
        ({"long_texts": "windows"}, "--long_texts"),
    ],
)
def test_runs_that_learn_otherwise_are_not_compared(one_setting, tmp_path, changed, told):
    """What the runs compare when they are resumed: options, files by their content, the lengths."""
    made = {name: model_of(tmp_path / name, name[:5]) for name in ("teacher", "other", "teach")}
    options = replace(one_setting, teacher=made["teacher"])
    tried(options)
    # The same teacher elsewhere, and the task's own length.
    tried(replace(options, teacher=made["teach"], max_length=128))
    changed = {name: made.get(value, value) for name, value in changed.items()}
    with pytest.raises(InputError, match=f"a search with another {told}: give the same"):
        tried(replace(options, **changed))
    assert len(tried(replace(options, **changed, override=True))) == 1


def test_a_search_that_cannot_be_is_refused(one_setting):
    with pytest.raises(InputError, match="a search and --strategy multi_worker cannot be combined"):
        tried(replace(one_setting, strategy="multi_worker"))
    tried(one_setting)
    (Path(one_setting.model) / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    with pytest.raises(InputError, match="another vocabulary or tokenizer of --model"):
        tried(one_setting)
    (Path(one_setting.output) / "search.json").write_text("{")
    with pytest.raises(InputError, match=r"search\.json cannot be read"):
        tried(one_setting)


def test_a_search_of_an_earlier_version_has_the_models_path_alone(one_setting, tmp_path):
    tried(one_setting)
    record = Path(one_setting.output) / "search.json"
    stored = json.loads(record.read_text())
    known = {"model": "../x", "task": None, "max_length": None}
    for name in ("model_content", "version", "teacher_content", "tokenizer", "long_texts"):
        stored["options"].pop(name)
    record.write_text(json.dumps({**stored, "options": {**stored["options"], **known}}))
    other = replace(one_setting, model=model_of(tmp_path / "other", "other weights"))
    with pytest.raises(InputError, match="a search with another --max_length: give"):
        tried(replace(other, max_length=9))
    tried(other)


def test_scores_on_differently_drawn_examples_are_not_compared(options, tmp_path):
    """Equal texts, and the questions of a context, were on both sides of the split."""
    (tmp_path / "d.tsv").write_text("text\tlabel\na\tx\n")
    own = replace(options, data=None, train=str(tmp_path / "d.tsv"), learning_rate=[BEST])
    file = replace(own, validation=own.train, output=f"{options.output}-2")
    for each in (own, file):
        tried(each)
        record = Path(each.output) / "search.json"
        stored = json.loads(record.read_text())
        stored["options"].pop("split", None)
        record.write_text(json.dumps(stored))
    tried(file)  # a search of an earlier version, whose examples are the same
    with pytest.raises(InputError, match="search with another split into training and validation"):
        tried(own)


def test_a_dry_run_writes_nothing(options, tmp_path):
    watcher = Lines()
    assert search(replace(options, dry_run=True), watcher, Runs()) == []
    assert watcher.notices == ["The search has 24 settings with 1 run(s) each"]
    assert not (tmp_path / "run").exists()


def test_features_have_rates_of_their_own(options):
    options = replace(options, batch_size=[32], epochs=[3], features_only="concat_last_four")
    runs = Runs()
    assert [setting.learning_rate for setting in tried(options, runs)] == [3e-3, 1e-3, 3e-4, 1e-4]
    options = replace(options, learning_rate=[1e-3], output=f"{options.output}-2")
    assert [setting.learning_rate for setting in tried(options)] == [1e-3]


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
    with pytest.raises(InputError, match="holds runs with another --learning_rate: give the same"):
        finetune_seeds(other, watcher, Runs())
    with pytest.raises(DivergedError, match="every seed diverged: give a smaller --learning_rate"):
        finetune_seeds(replace(other, output=f"{output}-2"), watcher, Runs())
    finetune_seeds(replace(seeds, output=f"{output}-2", seed=2), watcher, Runs())
    (output / "best" / "NOTES.md").write_text("theirs")
    for seed in (1, 3):
        shutil.rmtree(output / f"seed-{seed}")
    with pytest.raises(InputError, match=r"best/NOTES\.md: would be replaced"):
        finetune_seeds(seeds, watcher, Runs())
    assert (output / "best" / "NOTES.md").exists()


def test_two_commands_do_not_share_an_output(seeds):
    class Nested(Runs):
        def __call__(self, options, watcher=None):
            with pytest.raises(InputError, match="another process is training there"):
                finetune_seeds(seeds, Lines(), Runs())
            return super().__call__(options)

    assert finetune_seeds(seeds, Lines(), Nested()).best_seed == 3
