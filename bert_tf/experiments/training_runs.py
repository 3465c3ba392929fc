"""The runs that train: pre-training, and fine-tuning with several settings and seeds."""

import functools
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_tf.atomic import replace_directory
from bert_tf.checkpoints.formats import CONFIG
from bert_tf.checkpoints.model_directory import load_model, save_model
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.experiments.data_runs import Shards, TaskData
from bert_tf.experiments.run import Cache, Run, Show, chosen_options
from bert_tf.finetuning.finetune import finetune
from bert_tf.finetuning.options import SearchOptions
from bert_tf.finetuning.restarts import Restarts
from bert_tf.finetuning.search import search
from bert_tf.finetuning.trials import Trial
from bert_tf.models.language_model import BertLanguageModel
from bert_tf.models.pretrainer import BertPreTrainer
from bert_tf.options import CheckedOptions
from bert_tf.pretraining.options import PretrainingOptions
from bert_tf.pretraining.pretrain import pretrain
from bert_tf.tokenization import BertTokenizer
from bert_tf.training.listener import Listener
from bert_tf.training.state import load_weights


@dataclass(frozen=True, eq=False, kw_only=True)
class Pretraining(Run):
    """A pre-training.

    Attributes:
        shards: its run.
        options: options, without folders; a model is kept for every `keep_every` steps.
    """

    shards: Shards
    options: PretrainingOptions

    @property
    def inputs(self) -> tuple[Run, ...]:
        """The shards."""
        return (self.shards,)

    @property
    def identity(self) -> dict[str, Any]:
        """The options."""
        return chosen_options(self.options)

    @property
    def all_options(self) -> tuple[CheckedOptions, ...]:
        """Those of the command."""
        return (self.options,)

    def model(self, cache: Cache, step: int | None = None) -> Path:
        """The model of a step; by default the best one."""
        return cache.of(self) / ("best" if step is None else f"step-{step}")

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Pre-trains, as `bert-tf pretrain`."""
        short, *long = map(str, self.shards.folders(cache))
        folder = cache.of(self)
        options = replace(
            self.options, shards=short, long_shards=long[0] if long else None, output=str(folder)
        )
        result = pretrain(options, _Steps(show))
        assert result is not None
        for path in sorted((folder / "checkpoints").glob("step-*.safetensors")):
            step = int(path.stem.removeprefix("step-"))
            if step % (self.options.keep_every or self.options.steps) == 0:
                self._keep_model(path, self.model(cache, step))
        best = json.loads((folder / "best" / "metrics.json").read_text(encoding="utf-8"))
        return {"held_out": best}

    def _keep_model(self, checkpoint: Path, folder: Path) -> None:
        last = folder.parent / "last"
        direction = BertConfig.from_json(last / CONFIG).attention_direction
        model = load_model(last, BertPreTrainer if direction == "both" else BertLanguageModel)
        load_weights(model, checkpoint)
        with replace_directory(folder) as temporary:
            save_model(model, temporary, tokenizer=BertTokenizer.from_directory(last))

    def tidy(self, cache: Cache) -> None:
        """Deletes the checkpoints."""
        shutil.rmtree(cache.of(self) / "checkpoints", ignore_errors=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Finetuning(Run):
    """Fine-tunings: every setting with one seed, then the best setting with all seeds.

    Attributes:
        pretraining: its run.
        step: step of its model; None for the best one.
        data: examples.
        options: options, without folders.
    """

    pretraining: Pretraining
    step: int | None
    data: TaskData
    options: SearchOptions

    @property
    def inputs(self) -> tuple[Run, ...]:
        """The pre-training, and the examples if a run makes them."""
        return (self.pretraining, *([self.data.run] if self.data.run else []))

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        """Options, step, and content of the user's examples."""
        content = {} if self.data.run else {"content": self.data.content}
        return {**chosen_options(self.options), "step": self.step, **content}

    @property
    def all_options(self) -> tuple[CheckedOptions, ...]:
        """Those of the command."""
        return (self.options,)

    @property
    def record(self) -> str:
        """With the number of seeds: runs of more seeds go on in the same folder."""
        return f"{self.name}-seeds-{self.options.seeds}"

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        """Fine-tunes, as `bert-tf search`."""
        options = replace(
            self.options,
            model=str(self.pretraining.model(cache, self.step)),
            output=str(cache.of(self)),
            **self.data.options(cache),
        )
        tried = search(replace(options, seeds=1), _Steps(show), finetune)
        best = _best(tried, options.seed)
        if best is None:
            raise InputError(f"{self.title}: no setting has a score: give a lower learning rate")
        chosen = best.setting
        options = replace(
            options,
            batch_size=[chosen.batch_size],
            learning_rate=[chosen.learning_rate],
            epochs=[chosen.epochs],
        )
        for trial in search(options, _Steps(show), finetune):
            if trial.setting == chosen:
                best = trial
        seeds = range(options.seed, options.seed + options.seeds)
        of_seeds = Restarts(best.best_by, {seed: best.runs[seed] for seed in seeds})
        return {
            "setting": str(best.setting),
            "best_by": of_seeds.best_by,
            "scores": {n: list(s["scores"].values()) for n, s in of_seeds.summary().items()},
            "evaluations": [best.evaluations[s] for s in seeds if s in best.evaluations],
        }


class _Steps(Listener):
    """Shows the steps of a run, and no lines: a table has dozens of runs."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._total = 0

    def notice(self, line: str) -> None:
        """Leaves it out."""

    def planned(self, steps: int) -> None:
        self._total = steps

    def on_step(self, step: int) -> None:
        self._show.update(step, self._total)


def _best(trials: Sequence[Trial], seed: int) -> Trial | None:
    """The trial with the best score of one seed: further seeds do not change the choice."""

    def score(trial: Trial) -> float | None:
        return trial.runs.get(seed, {}).get(trial.best_by)

    scored = [trial for trial in trials if score(trial) is not None]
    return max(scored, key=lambda trial: score(trial) or 0.0, default=None)
