"""What the commands read does not tune itself: tf.data's tuning thread can stall a run's end."""

import pytest

from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.finetuning import finetune
from bert_tf.training.trainer import Trainer


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
