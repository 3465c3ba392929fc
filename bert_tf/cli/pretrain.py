r"""Pre-train a BERT on shards: masked words and next sentences.

  bert-tf pretrain --shards shards/ --size small --output runs/pretrained
  bert-tf pretrain --config recipes/pretrain-base.yaml --shards shards/128 \
    --long_shards shards/512 --output runs/base    # 90% of the steps short, the rest long

The same command continues a run that was stopped; a SIGTERM saves a checkpoint first, and exit
code 75 then says that there is more to do. The run directory holds the model with the lowest
held-out loss (best/) and the last one (last/), both of which load in Hugging Face too.
"""

from bert_tf.cli.progress import console, progress, training_line, typed
from bert_tf.tasks.options import PretrainingOptions as Options


def run(options: Options) -> None:
    """Runs `bert-tf pretrain`."""
    with progress("pre-training", total=options.steps) as bar:
        from bert_tf.tasks.pretraining import pretrain

        def report(step: int, kind: str, scalars: dict[str, float]) -> None:
            bar.update(step)
            bar.print(training_line(step, kind, scalars, options.steps))

        def left_out(shard: str, records: int) -> None:
            bar.print(f"left out of {shard}: {records} corrupt record(s)")

        result = pretrain(options, report, left_out, notice=bar.print)
    if not result.is_chief:  # the first of several workers tells
        return
    if result.started_at:
        console.print(f"continued from step {result.started_at}")
    if result.nonfinite_steps:
        console.print(
            f"{result.nonfinite_steps} step(s) with a non-finite loss or gradient left out"
        )
    if result.step_seconds:
        console.print(f"a step took {result.step_seconds * 1000:.0f} ms (median)")
    model = "best" if result.best is not None else "last"
    loss = f" (held-out loss {result.best:.4f})" if result.best is not None else ""
    console.print(
        f"Pre-trained model{loss}: {options.output}/{model}\n"
        f"Next: {typed('bert-tf')} finetune --model {options.output}/{model} --train train.tsv "
        f"--output runs/classifier\n"
        f"Curves: {typed('bert-tf')} monitor {options.output}",
        markup=False,
    )
