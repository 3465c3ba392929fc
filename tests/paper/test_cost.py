import re

from cases import for_each

from bert_tf.config import BertConfig
from bert_tf.models.cost import classification_flops
from bert_tf.models.encoder import encoder_for
from bert_tf.paper.cost import lstm_flops

SIZES = {"vocab_size": 300, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4}


@for_each(
    "changed",
    {},
    {"feature_layers": ["embeddings", "2"], "feature_lstm_layers": 2},
    {"feature_layers": ["mix"], "feature_lstm_layers": 2},
    {"attention_direction": "recurrent", "feature_lstm_layers": 1},
    ids=str,
)
def test_an_lstm_multiplies_each_token_by_each_weight_of_its_kernels(changed):
    config = BertConfig(**SIZES, **changed)
    encoder, _ = encoder_for(config, seed=1, dtype=None, of_task=True)
    kernels = [
        variable.shape.num_elements()
        for variable in encoder.trainable_variables
        if re.search(r"lstm|\b(forward|backward)\b", variable.path) and len(variable.shape) == 2
    ]
    assert bool(kernels) == bool(changed)
    assert lstm_flops(config, length=48) == 3 * 2 * 48 * sum(kernels)
    others = classification_flops(config, length=48, classes=4) - lstm_flops(config, length=48)
    assert others > 0
