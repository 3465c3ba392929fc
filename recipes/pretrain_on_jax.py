"""Pre-trains BERT on JAX: on one GPU, on several, or on a TPU, without TensorFlow.

    bert-tf shards --corpus text/ --tokenizer vocab/ --output shards/
    KERAS_BACKEND=jax python recipes/pretrain_on_jax.py --shards shards/ --output runs/jax

A stopped run continues from its last checkpoint: give the same command again. On a GPU, attention
is one fused kernel, which drops no attention probabilities. `tensorboard --logdir runs` shows the
losses; `last/` of the run is a model directory.
"""

import json
import shutil
from pathlib import Path

import jax
from shards_on_numpy import batches
from training_on_jax import distribute, parser, train

from bert_tf import BertConfig, BertPreTrainer, WarmupLinearDecay, save_model
from bert_tf.networks.kernels import FusedAttention

VOCABULARY = ("vocab.txt", "tokenizer_config.json")


def main() -> None:
    """Trains."""
    options = parser(__doc__)
    options.add_argument("--shards", required=True, help="folder of static shards")
    options.add_argument("--size", default="base", help="tiny, mini, small, medium, base or large")
    options.add_argument("--model", help="model directory to start from, in place of --size")
    options.add_argument("--steps", type=int, default=100_000)
    options.add_argument("--warmup_steps", type=int, default=1000)
    given = options.parse_args()
    distribute(given)
    settings = {}
    is_fused = jax.default_backend() == "gpu" and given.precision != "float32"
    if is_fused:
        settings["attention_probs_dropout_prob"] = 0.0
    if given.model:
        model = BertPreTrainer.from_directory(given.model, seed=given.seed, **settings)
    else:
        manifest = json.loads(Path(given.shards, "manifest.json").read_text())
        length = manifest["options"]["max_seq_length"]
        config = BertConfig.named(
            given.size,
            vocab_size=manifest["vocabulary"]["size"],
            max_position_embeddings=max(length, 512),
            **settings,
        )
        model = BertPreTrainer(config, seed=given.seed)
    if is_fused:
        model.encoder.kernels = FusedAttention
    rate = WarmupLinearDecay(given.learning_rate, given.warmup_steps, given.steps)
    last = Path(given.output, "last")
    for _ in train(
        model,
        rate,
        lambda step: batches(given.shards, given.batch_size, seed=given.seed, start=step),
        given,
    ):
        save_model(model, last)
        for name in VOCABULARY:
            shutil.copy(Path(given.shards, name), last)


if __name__ == "__main__":
    main()
