"""Short runs of `bert-tf pretrain`, and what a kill would leave of them."""

from pathlib import Path

from command_line import words
from watchers import Copied, Lines

from bert_tf.commands.pretrain import Options as PretrainingOptions
from bert_tf.commands.pretraining_run import run_pretraining

# What is logged of training, and of the held-out data.
SCORES = {"loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"}
SCALARS = {
    *(*SCORES, "gradient_norm", "learning_rate", "examples_per_second", "tokens_per_second"),
    *("share_of_peak", "minutes_left"),
}


def options(shards, small_config, output, **changed) -> PretrainingOptions:
    values = {"steps": 8, "batch_size": 8, "evaluation_batches": 2, "learning_rate": 1e-3}
    values |= {"log_every": 1, "save_every": 3, "evaluate_every": 4}
    if "model" not in changed:
        values["size"] = str(small_config)
    return PretrainingOptions(shards=str(shards), output=str(output), **{**values, **changed})


def pretraining_command(shards, config, output, **options) -> list[str]:
    usual = {"batch_size": 8, "evaluation_batches": 2}
    return words("pretrain", shards=shards, size=config, output=output, **usual | options)


def two_lengths(shards, small_config, output, **changed) -> PretrainingOptions:
    long = {"long_shards": str(shards / "32"), "long_share": 0.4}
    return options(shards / "16", small_config, output, **{**long, "steps": 10, **changed})


def run(options, copy_at=None) -> list[tuple[int, str, dict[str, float]]]:
    """The lines of a run.

    With `copy_at`, `killed(options.output)` is the folder as a kill after that step leaves it.
    """
    watcher = Lines()
    if copy_at is not None:
        saved = (copy_at - 1) // options.save_every * options.save_every
        watcher = Copied(options.output, copy_at, saved, killed(options.output))
    run_pretraining(options, watcher)
    return watcher.timeless


def killed(output) -> Path:
    return Path(f"{output}-killed")


def weights(output) -> bytes:
    return (Path(output) / "last" / "model.safetensors").read_bytes()
