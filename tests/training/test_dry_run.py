from small_trainers import BATCHES, dataset, pretraining

from bert_tf.training.dry_run import dry_run
from bert_tf.training.phases import Phase


def test_a_dry_run_evaluates_a_batch():
    trainer = pretraining()
    evaluated = []
    evaluate = trainer.evaluate
    trainer.evaluate = lambda *data, **how: evaluated.append((evaluate(*data, **how), how))
    batches = dataset(BATCHES)
    asked = []
    held_out = {"held_out": batches, "evaluate": lambda: asked.append("evaluate")}
    phase = Phase(until=9, batch_size=8, batches=lambda step: batches.repeat(), **held_out)
    dry_run(trainer, [phase])
    assert asked == ["evaluate"]
    ((logs, how),) = evaluated
    assert set(logs) >= {"loss", "mlm_logits_loss"} and how == {"limit": 1}
