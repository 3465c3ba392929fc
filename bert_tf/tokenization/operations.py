"""The operations that the tokenizer's graph is made of."""

from types import ModuleType

from bert_tf.errors import InputError
from bert_tf.startup import has_tf_text
from bert_tf.tokenization.normalizer import isolating_replacements, punctuation

OPERATIONS = ("auto", "tf_text", "core")


def operations(name: str = "auto") -> ModuleType:
    """The module with `Splitter` and `Normalizer`, by one of OPERATIONS; InputError for another.

    "auto" takes TF Text's operations where it is installed, which are faster, else TensorFlow's.
    """
    if name not in OPERATIONS:
        raise InputError(f"ops is {name!r}: give one of {', '.join(OPERATIONS)}")
    if name == "tf_text" and not has_tf_text():
        raise InputError(
            'ops="tf_text" needs TF Text: pip install tensorflow-text, or give ops="core"'
        )
    if name == "core" or not has_tf_text():
        from bert_tf.tokenization import core_ops

        return core_ops
    from bert_tf.tokenization import tf_text

    return tf_text


def whole_table(
    do_lower_case: bool, strip_accents: bool, tokenize_chinese_chars: bool
) -> dict[str, str]:
    """Characters that change, and what each becomes, so that words end at spaces alone.

    For runtimes that split words at spaces.
    """
    table = isolating_replacements(
        do_lower_case, strip_accents, tokenize_chinese_chars, punctuation()
    )
    if tokenize_chinese_chars:
        table |= {c: f" {c} " for c in operations().unassigned_marks()}
    return table
