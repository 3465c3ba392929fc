"""Write a SavedModel that takes raw strings, for TensorFlow Serving.

  bert-tf export --model runs/classifier/best --name classifier

Tokenizer, model and post-processing are one graph of ops that released servers have. Each export
is a new version, saved_models/<name>/<version>/, which a running server picks up by itself. It
holds warm-up requests for every signature, which have been run, parameters for batching and a model
card, README.md. saved_models/models.config lists the models for TensorFlow Serving.

--precision bfloat16 is faster on processors that multiply bfloat16 (AVX512-BF16, AMX, Arm's BF16)
and slow on others.
"""

from bert_tf.api.export import ExportOptions as Options
from bert_tf.api.export import run as export
from bert_tf.cli.progress import console, typed


def run(options: Options) -> None:
    result = export(options)
    given = '--text "a raw string"' + ' --pair "another"' * (len(result.inputs) - 1)
    if any(rank > 1 for rank in result.inputs.values()):
        given = "--input FILE"
    lines = [
        *result.lines(),
        f"Next: {typed('bert-tf')} predict --model {result.path.parent} {given}",
        f"  or: {typed('bert-tf')} serve {options.output}; docs/serving.md has TensorFlow Serving",
    ]
    console.print("\n".join(lines))
