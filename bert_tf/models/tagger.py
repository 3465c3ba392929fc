"""The model that gives every token a label."""

import keras

from bert_tf.models.classifier import ClassifierModel


@keras.saving.register_keras_serializable(package="bert_tf")
class BertTagger(ClassifierModel):
    """An encoder with a dense layer on every token's vector (paper, section 5.3).

    Args:
        encoder: a `BertEncoder`, or a `BertConfig` for a new one.
        num_classes: C, at least 2; None for the number of labels.
        labels: names of the classes, in the order of their ids; None for no names.
        dropout: dropout rate of the vectors; None for the config's `classifier_dropout`, or else
            its `hidden_dropout_prob`.
        seed: random seed for the head and for a new encoder; None for no fixed seed.
        dtype: Keras dtype policy of the head and of a new encoder; None for the encoder's, or
            else the global one.
        kwargs: Keras' own, such as `name`.

    Inputs: the encoder's. Output: logits, float32 [B, T, C] whatever the compute dtype.

    Raises:
        InputError: as of `BertClassifier`.
    """

    reads = "sequence_output"
