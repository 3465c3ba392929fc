"""What reads batches can hang for tens of seconds at its end; what the commands read does not."""

import time

import pytest

from bert_tf import BertConfig, BertTokenizer
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning import finetune
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.models.task_models import BertClassifier
from bert_tf.networks.tensorflow.losses import cross_entropy
from bert_tf.pipelines.examples.batches import example_batches
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches
from bert_tf.tasks.kinds.classification import Classification
from bert_tf.tasks.table import TASKS
from bert_tf.training.loop import TrainingLoop
from bert_tf.training.optimizer import AdamWeightDecay
from bert_tf.training.plan import Phase
from bert_tf.training.state import TrainingState
from bert_tf.training.trainer import Trainer
from bert_tf.training.training_options import TrainingOptions

# What stalls is a thread of tf.data that sleeps 10 ms x 2^n and is waited for: the longer a fit,
# the longer its end, 20 s and more. One of these takes less than a second.
DEADLINE = 10


def seconds_of_runs(trainer, batches, held_out, directory) -> list[float]:
    seconds = []
    for number in range(7):
        began = time.monotonic()
        TrainingLoop(
            [Phase(until=4, batch_size=8, batches=batches, held_out=held_out)],
            state=TrainingState(trainer, directory / str(number) / "checkpoints", settings={}),
            directory=directory / str(number),
            options=TrainingOptions(output="run", save_every=100, log_every=1),
            evaluate_every=2,
            best_by="loss",
            larger_is_better=False,
            save_model=lambda path: None,
        ).run()
        seconds.append(time.monotonic() - began)
    return seconds[1:]  # the first one traces the graphs


@pytest.mark.slow
def test_many_short_runs_of_pre_training(shards, small_config, tmp_path):
    model = BertPreTrainer(BertConfig.from_json(small_config))
    losses = {"mlm_logits": cross_entropy, "nsp_logits": cross_entropy}
    trainer = Trainer(model, AdamWeightDecay(1e-3), loss=losses)
    held_out = pretraining_batches(shards, 8, split="held_out", shuffle=False, repeat=False)
    held_out = held_out.take(3)
    seconds = seconds_of_runs(
        trainer, lambda step: pretraining_batches(shards, 8, start_step=step), held_out, tmp_path
    )
    assert max(seconds) < DEADLINE


@pytest.mark.slow
def test_many_short_runs_of_fine_tuning(tokenizer, small_config, labelled, tmp_path):
    model = BertClassifier(BertConfig.from_json(small_config), labels=["farm", "sea"])
    kind, pieces = Classification(), BertTokenizer.from_directory(tokenizer)
    trainer = Trainer(model, AdamWeightDecay(1e-3), loss=cross_entropy)

    def batches(name, **order):
        examples = TASKS["classification"].read(labelled / name, "train")
        return example_batches(
            {"text": examples.columns["text"]},
            lambda strings, arrays: kind.batch(strings, arrays, pieces, 16),
            8,
            targets=[kind.targets(examples, ["farm", "sea"])],
            **order,
        )

    seconds = seconds_of_runs(
        trainer,
        lambda step: batches("train.tsv", seed=0, start_step=step),
        batches("test.tsv"),
        tmp_path,
    )
    assert max(seconds) < DEADLINE


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["one", "mirrored"])
def test_nothing_that_a_command_reads_tunes_itself(
    pretrained, labelled, tmp_path, monkeypatch, strategy
):
    read = []
    iterate = Trainer.iterate

    def watched(trainer, batches):
        read.append(batches)
        return iterate(trainer, batches)

    monkeypatch.setattr(Trainer, "iterate", watched)
    finetune(
        FinetuningOptions(
            model=str(pretrained / "last"),
            train=str(labelled / "train.tsv"),
            epochs=1,
            output=str(tmp_path / "run"),
            max_length=16,
            strategy=strategy,
        )
    )
    assert read
    assert [each.options().autotune.enabled for each in read] == [False] * len(read)
