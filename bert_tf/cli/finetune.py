r"""Fine-tune a model from labelled examples: classification or regression, of texts or pairs.

  bert-tf finetune --model runs/pretrained/best --train train.tsv --output runs/classifier
  bert-tf finetune --model models/base --task mrpc --train glue/MRPC --output runs/mrpc
  bert-tf finetune --model models/base --task regression --train sts.csv --label_column score \
    --pair_column sentence2 --text_column sentence1 --output runs/sts

The examples are a .tsv or .csv file with a header, or .jsonl; name the columns with
--text_column, --pair_column and --label_column. For other files see --format and --no_header. A
task with a name (--task mrpc) knows its columns, labels and scores; docs/adding-a-task.md shows how
to write one. The paper tries batches of 16 and 32, learning rates of 5e-5, 3e-5 and 2e-5, and 2 to
4 epochs. The same command resumes a stopped run.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from bert_tf.cli.progress import console, progress, training_line, typed
from bert_tf.tasks.options import FinetuningOptions as Options

if TYPE_CHECKING:
    from bert_tf.tasks.finetuning import FinetuningResult


def run(options: Options) -> None:
    """Runs `bert-tf finetune`."""
    with progress("fine-tuning") as bar:
        from bert_tf.tasks.finetuning import finetune, finetune_seeds

        total_steps = 0

        def planned(steps: int) -> None:
            nonlocal total_steps
            total_steps = steps

        def on_step(step: int) -> None:
            bar.update(step, total=total_steps)

        def report(step: int, kind: str, scalars: dict[str, float]) -> None:
            bar.print(training_line(step, kind, scalars, total_steps))

        def one_run(options: Options) -> "FinetuningResult":
            return finetune(options, report, notice=bar.print, planned=planned, on_step=on_step)

        if options.seeds > 1:
            summary = finetune_seeds(options, one_run)
        else:
            result = one_run(options)
    if options.seeds > 1:
        lines = [
            f"{name}: mean {each['mean']:.4g}, deviation {each['deviation']:.2g}, "
            f"best {each['best']:.4g}"
            for name, each in summary.items()
        ]
        lines.append(
            f"Fine-tuned with {options.seeds} seeds; all scores: {options.output}/seeds.json"
        )
    elif result.evaluation is None:  # a worker other than the chief
        return
    else:
        lines = _outcome(result)
    best = f"{options.output}/best"
    console.print(
        "\n".join(
            [
                *lines,
                f"Best model: {best}",
                f"Next: {typed('bert-tf')} evaluate --model {best} --data test.tsv",
                f"      {typed('bert-tf')} export --model {best} --name {_name(options.output)}",
                f"Curves: {typed('bert-tf')} monitor {options.output}",
            ]
        ),
        markup=False,
    )


def _outcome(result: "FinetuningResult") -> list[str]:
    training, evaluation = result.training, result.evaluation
    assert evaluation is not None
    lines = []
    if training.started_at == training.step:
        lines.append(f"The run was complete: it ended at step {training.step:,}")
    elif training.started_at:
        lines.append(f"Resumed from step {training.started_at:,}")
    if training.ended_early:
        lines.append(f"Ended early, at step {training.step:,}: no better score")
    if training.step_seconds:
        lines.append(f"A step took {training.step_seconds * 1000:.0f} ms (median)")
    scores = "  ".join(
        f"{name} {'undefined' if value is None else f'{value:.4g}'}"
        for name, value in evaluation.scores.items()
    )
    best = ""
    if training.best_step:
        best = f" (best: epoch {training.best_step / result.steps_per_epoch:.3g})"
    return [
        *lines,
        f"Fine-tuned on {result.train_examples} examples; validation{best}: {scores}",
        *evaluation.remarks,
    ]


def _name(output: str) -> str:
    return Path(output).resolve().name
