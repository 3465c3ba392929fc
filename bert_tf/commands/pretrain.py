r"""Pre-train a BERT on shards: masked words and next sentences.

  bert-tf pretrain --shards shards/ --size small --output runs/pretrained
  bert-tf pretrain --config recipes/pretrain-base.yaml --shards shards/128 \
    --long_shards shards/512 --output runs/base    # 90% of the steps short, the rest long
  bert-tf pretrain --shards shards/ --objective ltr --output runs/ltr    # a language model

The same command resumes a stopped run; after SIGTERM it saves a checkpoint and exits with code 75.
The run directory holds the model with the lowest held-out loss (best/) and the last one (last/),
which load in Hugging Face, too (docs/objectives.md).
"""

from bert_tf.api.pretrain import pretrain
from bert_tf.api.progress import console, typed
from bert_tf.pretraining.pretraining_options import PretrainingOptions as Options

COMMON = (
    "shards", "long_shards", "size", "model", "output", "batch_size", "learning_rate", "steps",
    "warmup_steps", "precision",
)  # fmt: skip


def run(options: Options) -> None:
    result = pretrain.of(options)
    if result.model is None:  # a dry run, or a worker other than the chief
        return
    from bert_tf.pretraining.word_frequencies import plateau_notice

    features = "--features_only mix " if options.objective == "bilm" else ""  # as ELMo is used
    then = f"finetune --model {result.model} {features}--train train.tsv --output runs/classifier"
    console.print(str(result))
    console.print(plateau_notice(str(result.model)) or f"Next: {typed('bert-tf')} {then}")
    console.print(f"Curves: {typed('bert-tf')} monitor {options.output}")
