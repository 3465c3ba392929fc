import json

from cases import for_each, refused
from command_line import words

from bert_tf.config import SIZES, BertConfig


def test_sizes():
    shapes = words("2x128x2 4x256x4 4x512x8 8x512x8 12x768x12 24x1024x16")
    for size, shape in zip(words("tiny mini small medium base large"), shapes, strict=True):
        config = BertConfig.named(size, vocab_size=100)
        assert config == BertConfig.named(shape, vocab_size=100)
        numbers = (config.num_hidden_layers, config.hidden_size, config.num_attention_heads)
        assert "x".join(map(str, numbers)) == shape
        assert (config.intermediate_size, config.vocab_size) == (4 * config.hidden_size, 100)
    assert len(SIZES) == 6


def test_sizes_with_a_difference_and_what_fits():
    assert BertConfig() == BertConfig.named("base")  # the original's
    refused("no model size 'huge': give one of tiny, mini", BertConfig.named, "huge")
    config = BertConfig.named("tiny", hidden_size=64, hidden_dropout_prob=0.0)
    assert (config.hidden_size, config.intermediate_size) == (64, 256)
    assert config.hidden_dropout_prob == 0.0
    config = BertConfig(max_position_embeddings=100, type_vocab_size=1)
    config.check_fits(length=100)
    refused("101 tokens is more than the 100 positions", config.check_fits, length=101)
    refused(r"one segment \(type_vocab_size 1\)", config.check_fits, length=100, pairs=True)
    BertConfig().check_fits(length=512, pairs=True)


def test_json_keeps_what_it_does_not_know(tmp_path):
    values = {"vocab_size": 12, "hidden_size": 8, "num_attention_heads": 2, "model_type": "bert"}
    values |= {"use_cache": True, "transformers_version": "4.8.2", "extra": 1}
    values |= {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = BertConfig.from_json(tmp_path / "config.json")
    assert config.labels == ["no", "yes"]
    assert config.extra["use_cache"] is True
    config.to_json(tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert again.items() >= values.items()
    assert BertConfig.from_json(tmp_path / "again.json").to_dict() == config.to_dict()


@for_each(
    "values message",
    ({"hidden_size": 100}, "hidden_size 100 is not a multiple of num_attention_heads 12"),
    ({"hidden_act": "mish"}, "hidden_act 'mish' is unknown: give one of gelu"),
    ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ({"num_hidden_layers": 10**6}, "is 1000000: give a whole number from 1 to 10000"),
    ({"feature_lstm_layers": 101}, "feature_lstm_layers is 101"),
    ({"hidden_size": 10**400}, "give a whole number from 1 to 2147483647"),
    ({"layer_norm_eps": 10**400}, "layer_norm_eps is 1000"),
    ({"feature_layers": "last"}, "feature_layers is 'last': give "),
    ({"vocab_size": "many"}, "vocab_size is 'many'"),
    ({"vocab_size": True}, "vocab_size is True"),
    ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
    ({"hidden_dropout_prob": None}, "hidden_dropout_prob is None"),
    ({"classifier_dropout": -0.1}, "classifier_dropout is -0.1"),
    ({"layer_norm_eps": 0}, "layer_norm_eps is 0"),
    ({"layer_norm_eps": float("nan")}, "layer_norm_eps is nan"),
    ({"initializer_range": float("inf")}, "initializer_range is inf"),
    ({"pad_token_id": -1}, "pad_token_id is -1"),
    ({"pad_token_id": "0"}, "pad_token_id is '0'"),
    ({"id2label": {"0": "\ud800"}}, "id2label is"),
    ({"position_embedding_type": "relative_key"}, "position_embedding_type is 'relative_key'"),
    ({"attention_direction": "left"}, "attention_direction is 'left': give one of both"),
    ({"add_cross_attention": True}, "add_cross_attention is True"),
    ({"model_type": "roberta"}, "model_type is 'roberta'"),
    ({"model_type": "deberta-v2", "type_vocab_size": 0}, "model_type is 'deberta-v2'"),
    ({"architectures": ["ElectraModel"]}, "architectures is ['ElectraModel'], but only BERT's"),
    ({"architectures": ["XLMRobertaForMaskedLM"], "model_type": "bert"}, "architectures is"),
    ({"architectures": {"BertModel": 1}}, "architectures is"),
    ({"norm_first": True}, "norm_first is True"),
    ({"pruned_heads": {"0": [1]}}, "pruned_heads is"),
    ({"id2label": {"1": "a", "2": "b"}}, "must number its labels 0 to 1"),
    ({"id2label": ["a", "b"]}, "id2label is"),
    ({"id2label": {"one": "a"}}, "id2label is"),
)
def test_refusals_are_one_line(values, message):
    assert message in refused("", BertConfig.from_dict, values)


def test_classes_of_bert_are_taken():
    names = ["BertModel", "TFBertForMaskedLM", "FlaxBertModel", "FeatureBasedBertForX"]
    BertConfig.from_dict({"architectures": names, "norm_first": False, "pruned_heads": {}})
    BertConfig.from_dict({"architectures": ["MyHead"], "own_head": "MyHead"})
    BertConfig.from_dict({"architectures": None})


@for_each(
    "content message",
    (None, "does not exist"),
    ("folder", "cannot be read"),
    (b"{", "is not JSON"),
    (b"\xff\xfe", "is not JSON"),
    (b"[]", "holds no JSON object"),
    (b"[" * 100_000, "is not JSON"),
    (b'{"hidden_act": "mish"}', "config.json: hidden_act 'mish' is unknown"),
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "config.json"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    assert message in refused(str(path), BertConfig.from_json, path)
