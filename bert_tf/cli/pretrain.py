r"""Pre-train a BERT on shards: masked words and next sentences.

  bert-tf pretrain --shards shards/ --size small --output runs/pretrained
  bert-tf pretrain --config recipes/pretrain-base.yaml --shards shards/128 \
    --long_shards shards/512 --output runs/base    # 90% of the steps short, the rest long
  bert-tf pretrain --shards shards/ --objective ltr --output runs/ltr    # a language model

The same command resumes a stopped run; after SIGTERM it saves a checkpoint and exits with code 75.
The run directory holds the model with the lowest held-out loss (best/) and the last one (last/),
which load in Hugging Face, too (docs/objectives.md).
"""

from bert_tf.cli.progress import RunProgress, console, outcome_lines, progress, typed
from bert_tf.pretraining.options import PretrainingOptions as Options


def run(options: Options) -> None:
    with progress("pre-training", total=options.steps) as bar:
        from bert_tf.pretraining.pretrain import pretrain

        result = pretrain(options, RunProgress(bar))
    if result is None or not result.is_chief:
        return
    from bert_tf.pretraining.word_frequencies import plateau_notice

    lines = outcome_lines(result, options.steps)
    model = f"{options.output}/{'last' if result.best is None else 'best'}"
    loss = "" if result.best is None else f" (held-out loss {result.best:.4f})"
    lines.append(f"Pre-trained model{loss}: {model}")
    features = "--features_only mix " if options.objective == "bilm" else ""  # as ELMo is used
    lines.append(
        plateau_notice(model)
        or f"Next: {typed('bert-tf')} finetune --model {model} {features}--train train.tsv "
        "--output runs/classifier"
    )
    lines.append(f"Curves: {typed('bert-tf')} monitor {options.output}")
    console.print("\n".join(lines))
