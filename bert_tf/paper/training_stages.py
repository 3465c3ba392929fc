"""The stages that train: pre-training, and fine-tuning with several settings and seeds."""

import functools
import json
import math
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.commands.pretraining_run import run_pretraining
from bert_tf.commands.search import Options as SearchOptions
from bert_tf.commands.seeds import Restarts, best_of
from bert_tf.commands.settings_search import Trial, search
from bert_tf.config import BertConfig
from bert_tf.errors import InputError
from bert_tf.files.atomic import replace_directory
from bert_tf.models.cost import classification_flops, pretraining_flops
from bert_tf.models.loading import class_of_kind, load_model
from bert_tf.models.saving import save_model
from bert_tf.paper.architectures import DIRECTIONS
from bert_tf.paper.cost import lstm_flops
from bert_tf.paper.data_stages import Shards, TaskData
from bert_tf.paper.stage import Cache, Show, Stage, chosen_options
from bert_tf.paper.step_speed import LSTM_SPEED, StepSpeed, predicted_positions
from bert_tf.tasks.kinds.span import Span
from bert_tf.tasks.task_table import find_task, with_options
from bert_tf.tokenization import BertTokenizer
from bert_tf.training.resuming import load_weights
from bert_tf.training.training_options import dropout_settings
from bert_tf.training.watcher import Watcher

NO_SCORE = "no score"
_DOCUMENTATION_EXAMPLES = 1280
_FINETUNING_SECONDS = 15.0  # of a fine-tuning, beside its steps: loading, tracing, evaluations
# Of a parameter; Adam has two means of each weight.
_WEIGHT_BYTES = 4
_CHECKPOINT_BYTES = 12


@dataclass(frozen=True)
class Score:
    """A score of ours, in the paper's units."""

    values: list[float]  # one for each seed
    setting: str = ""  # setting of the fine-tuning, if it is one
    best_of: str = ""  # what a value is, "best of 3 evaluations"; empty if it is of one, or unknown

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """The sample's; None for fewer than two seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def __str__(self) -> str:
        if self.mean is None:
            return NO_SCORE
        return f"{self.mean:.1f}" + ("" if self.deviation is None else f" ± {self.deviation:.1f}")


@dataclass(frozen=True, eq=False, kw_only=True)
class Pretraining(Stage):
    """A pre-training; its options name no folders. A model is kept for every `keep_every` steps."""

    shards: Shards
    options: PretrainingOptions

    @property
    def identity(self) -> dict[str, Any]:
        return chosen_options(self.options)

    def model(self, cache: Cache, step: int | None = None) -> Path:
        return cache.of(self) / ("best" if step is None else f"step-{step}")

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        short, *long = map(str, self.shards.folders(cache))
        folder = cache.of(self)
        after = long[0] if long else None
        options = replace(self.options, shards=short, long_shards=after, output=str(folder))
        result = run_pretraining(options, _Steps(show))
        assert result is not None
        for path in sorted((folder / "checkpoints").glob("step-*.safetensors")):
            step = int(path.stem.removeprefix("step-"))
            if step % (self.options.keep_every or self.steps) == 0:
                last = folder / "last"
                model: Any = load_model(last)
                load_weights(model, path)
                with replace_directory(self.model(cache, step)) as temporary:
                    save_model(model, temporary, tokenizer=BertTokenizer.from_directory(last))
        best = json.loads((folder / "best" / "metrics.json").read_text(encoding="utf-8"))
        return {"held_out": best}

    def tidy(self, cache: Cache) -> None:
        shutil.rmtree(cache.of(self) / "checkpoints", ignore_errors=True)

    def score(self, outcome: Mapping[str, Any], name: str | None) -> Score:
        """The perplexity of held-out words, of masked ones if the model predicts those."""
        held_out = outcome["held_out"]
        return Score([math.exp(held_out["mlm_loss" if "mlm_loss" in held_out else "loss"])])

    @property
    def steps(self) -> int:
        return self.options.steps

    @functools.cached_property
    def config(self) -> BertConfig:
        return BertConfig.named(
            self.options.size or "small",
            vocab_size=self.shards.vocabulary.size,
            attention_direction=DIRECTIONS.get(self.options.objective or "", "both"),
            **dropout_settings(self.options.dropout),
        )

    def seconds(self, speed: StepSpeed) -> float:
        flops = in_lstms = 0.0
        batch = round(self.options.mean_batch_size)
        shares = [1.0] if len(self.shards.lengths) == 1 else [0.9, 0.1]
        for share, length in zip(shares, self.shards.lengths, strict=True):
            places = predicted_positions(self.options, length)
            steps = share * self.steps
            flops += steps * pretraining_flops(
                self.config, instances=batch, length=length, predictions=places
            )
            in_lstms += steps * batch * lstm_flops(self.config, length=length)
        return self.seconds_of(speed, flops, in_lstms)

    def seconds_of(self, speed: StepSpeed, flops: float, in_lstms: float) -> float:
        """Seconds of the operations of a model of its size, some of them in LSTM layers."""
        rate = speed.pretraining_rate(self.options, self.config, self.shards.lengths[0])
        return (flops - in_lstms + in_lstms / LSTM_SPEED) / rate

    @property
    def bytes(self) -> float:
        every = self.options.keep_every
        looks = self.steps // every if every else 0
        return self.bytes_of(models=2 + (looks if every else 1), checkpoints=2 + looks)

    def bytes_of(self, models: int, checkpoints: int) -> float:
        """Size of models and training checkpoints of its size."""
        width = self.config.hidden_size
        layers = self.config.num_hidden_layers
        parameters = 12 * layers * width**2 + width * (self.config.vocab_size + 512)
        return parameters * (models * _WEIGHT_BYTES + checkpoints * _CHECKPOINT_BYTES)


@dataclass(frozen=True, eq=False, kw_only=True)
class Finetuning(Stage):
    """Fine-tunings: every setting with one seed, then the best setting with all seeds."""

    pretraining: Pretraining
    step: int | None  # of the pre-trained model; None for the best one
    data: TaskData
    options: SearchOptions  # name no folders

    @functools.cached_property
    def identity(self) -> dict[str, Any]:
        content = {} if self.data.stage else {"content": self.data.content}
        return {**chosen_options(self.options), "step": self.step, **content}

    @property
    def record(self) -> str:
        """With the number of seeds: more seeds are added in the same folder."""
        return f"{self.name}-seeds-{self.options.seeds}"

    @property
    def seeds(self) -> list[int]:
        return [*range(self.options.seed, self.options.seed + self.options.seeds)]

    def make(self, cache: Cache, show: Show) -> dict[str, Any]:
        model = self.pretraining.model(cache, self.step)
        output = cache.of(self)
        folders = {"model": str(model), "output": str(output), **self.data.options(cache)}
        options = replace(self.options, **folders)

        def merit(trial: Trial) -> tuple[float, ...]:  # of the first seed: others change no choice
            return trial.merit(trial.runs.get(options.seed, {})) or ()

        tried = search(replace(options, seeds=1), _Steps(show), run_finetuning)
        chosen = max(reversed(tried), key=merit)  # of equal ones the later
        if not merit(chosen):
            raise InputError(f"{self.title}: no setting has a score: give a lower learning rate")
        setting: dict[str, Any] = {n: [value] for n, value in vars(chosen.setting).items()}
        tried = search(replace(options, **setting), _Steps(show), run_finetuning)
        (chosen,) = (trial for trial in tried if trial.setting == chosen.setting)
        of_seeds = Restarts(chosen.best_by, {seed: chosen.runs[seed] for seed in self.seeds})
        return {
            "setting": str(chosen.setting),
            "best_by": of_seeds.best_by,
            "scores": {n: list(s["scores"].values()) for n, s in of_seeds.summary().items()},
            "evaluations": [chosen.evaluations[s] for s in self.seeds if s in chosen.evaluations],
        }

    def score(self, outcome: Mapping[str, Any], name: str | None) -> Score:
        """A score by its name; None for the one that chose the models."""
        factor = 1.0 if isinstance(find_task(self.data.task).kind, Span) else 100.0
        values = [factor * x for x in outcome["scores"].get(name or outcome["best_by"], [])]
        return Score(values, outcome["setting"], best_of(outcome.get("evaluations", ())))

    @property
    def _fine_tunings(self) -> int:
        return len(self.options.rates) + self.options.seeds - 1

    @functools.cached_property
    def steps(self) -> int:
        examples = _DOCUMENTATION_EXAMPLES
        if not self.data.stage:
            task = with_options(find_task(self.data.task), vars(self.options))
            examples = len(task.read(self.data.train, "train"))
        steps = math.ceil(examples / self.options.batch_size[0]) * self.options.epochs[0]
        return min(steps, self.options.max_steps or steps) * self._fine_tunings

    def seconds(self, speed: StepSpeed) -> float:
        model_class = class_of_kind(find_task(self.data.task).kind)
        config = replace(self.pretraining.config, **self.options.config_changes(model_class))
        length = (self.options.max_length or 128) / 2
        examples = self.steps * self.options.batch_size[0]
        flops = examples * classification_flops(config, length=length, classes=2)
        in_lstms = examples * lstm_flops(config, length=length)
        seconds = self.pretraining.seconds_of(speed, flops, in_lstms)
        return seconds + self._fine_tunings * _FINETUNING_SECONDS

    @property
    def bytes(self) -> float:
        return self.pretraining.bytes_of(models=3, checkpoints=2)


@dataclass
class _Steps(Watcher):
    """Shows the steps of a run, and no lines: a table has dozens of runs."""

    show: Show
    total: int = 0

    def notice(self, line: str) -> None:
        pass

    def begin(self, total_steps: int) -> None:
        self.total = total_steps

    def after_step(self, step: int) -> None:
        self.show(step, self.total)
