r"""Write a SavedModel that takes raw strings, for TensorFlow Serving.

  bert-tf export --model runs/classifier/best --name classifier

Tokenizer, model and post-processing are one graph of ops that released servers have. Each export
is a new version, saved_models/<name>/<version>/, which a running server picks up by itself. It
holds warm-up requests for every signature, which have been run, parameters for batching and a model
card, README.md. saved_models/models.config lists the models for TensorFlow Serving.

--precision bfloat16 is faster on processors that multiply bfloat16 (AVX512-BF16, AMX, Arm's BF16)
and slow on others. int8 is the fastest on most x86-64 processors; it is calibrated on examples of
the task, compared with float32 on others, and refused if it loses more than --max_loss points:

  bert-tf export --model runs/classifier/best --name classifier --precision int8 \
    --calibration train.tsv

For runtimes other than TensorFlow, which take token ids (docs/other-runtimes.md):

  bert-tf export --model runs/classifier/best --name classifier --format onnx
"""

from bert_tf.api.export import ExportOptions as Options
from bert_tf.api.export import export_model
from bert_tf.api.progress import console, typed
from bert_tf.files.mirror import joined
from bert_tf.serving.packed_weights import pack_weights


def prepare(options: Options) -> None:
    if options.precision in ("auto", "all"):  # types are compared as servers compute them
        pack_weights(["float32", "bfloat16"])


def run(options: Options) -> None:
    result = export_model.of(options)
    if not result.versions:
        console.print(f"{result}\nNext: the card has lines of Python that ask the model")
        return
    given = '--text "a raw string"' + ' --pair "another"' * (len(result.inputs) - 1)
    if any(rank > 1 for rank in result.inputs.values()):
        given = "--input FILE"
    output = options.output or "saved_models"
    model = joined(output, options.name)
    serve = f"{typed('bert-tf')} serve {output}; docs/serving.md has TensorFlow Serving"
    console.print(str(result))
    console.print(f"Next: {typed('bert-tf')} predict --model {model} {given}\n  or: {serve}")
