"""Names and shapes of weights."""

from dataclasses import replace

from stored_models import CONFIG

from bert_tf.checkpoints.weight_names import canonical_name, named_weights, tensor_shapes
from bert_tf.models.language_model import BertPreTrainer
from bert_tf.paper.encoders import LstmEncoder


def test_tensor_shapes_are_those_of_the_model():
    model = BertPreTrainer(CONFIG)
    ours = {canonical_name(weight.name): weight.shape for weight in named_weights(model)}
    assert tensor_shapes(CONFIG) == ours
    recurrent = replace(CONFIG, attention_direction="recurrent")
    weights = named_weights(LstmEncoder(recurrent))
    shapes = tensor_shapes(recurrent).items()
    assert {canonical_name(weight.name): weight.shape for weight in weights} == {
        name: shape for name, shape in shapes if not name.startswith("cls.")
    }
