"""Fine-tune a model to classify sentences, or pairs of them, from labelled examples.

  bert-tf finetune --model runs/pretrained/best --train train.tsv --output runs/classifier

The examples are a .tsv or .csv file with a header, or .jsonl; name the columns with
--text_column, --pair_column and --label_column. The paper tries batches of 16 and 32, learning
rates of 5e-5, 3e-5 and 2e-5, and 2 to 4 epochs. The same command continues a run that was stopped.
"""

from bert_tf.cli.progress import console, progress, training_line, typed
from bert_tf.tasks.options import FinetuningOptions as Options


def run(options: Options) -> None:
    """Runs `bert-tf finetune`."""
    with progress("fine-tuning") as bar:
        from bert_tf.tasks.sentence_classification import finetune

        total_steps = None

        def planned(steps: int) -> None:
            nonlocal total_steps
            total_steps = steps

        def report(step: int, kind: str, scalars: dict[str, float]) -> None:
            bar.update(step, total=total_steps)
            bar.print(training_line(step, kind, scalars, total_steps))

        result = finetune(options, report, notice=bar.print, planned=planned)
    if not result.training.is_chief:  # the first of several workers tells
        return
    if result.training.started_at:
        console.print(f"continued from step {result.training.started_at}")
    if result.training.step_seconds:
        console.print(f"a step took {result.training.step_seconds * 1000:.0f} ms (median)")
    scores = "  ".join(f"{name} {value:.4g}" for name, value in result.scores.items())
    console.print(
        f"Fine-tuned on {result.train_examples} examples; validation: {scores}\n"
        f"Classifier: {options.output}/best\n"
        f"Next: {typed('bert-tf')} export --model {options.output}/best --name classifier\n"
        f"Curves: {typed('bert-tf')} monitor {options.output}",
        markup=False,
    )
