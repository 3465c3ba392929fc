import json
from dataclasses import replace

import numpy as np
import pytest
from cases import for_each, refused
from safetensors.numpy import load_file
from tiny import tiny_config

from bert_tf import BertEncoder, BertTokenizer, load_model, save_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.errors import InputError
from bert_tf.models.encoder import encoder_for
from bert_tf.models.language_model import BertMaskedLanguageModel, BertPreTrainer
from bert_tf.models.task_models import BertClassifier, BertSpanClassifier
from bert_tf.paper.language_model import BertLanguageModel

CONFIG = tiny_config(7, max_position_embeddings=12)
DIRECTIONS = ["left_to_right", "right_to_left", "left_to_right+right_to_left", "recurrent"]
INPUTS = {"token_ids": np.array([[2, 5, 6, 3]]), "segment_ids": np.zeros([1, 4], int)}
INPUTS |= {"padding_mask": np.array([[1, 1, 1, 0]]), "mask_positions": np.array([[0, 2]])}


def outputs(model):
    answer = model({name: INPUTS[name] for name in model.input})
    return answer if isinstance(answer, dict) else {"logits": answer}


@for_each(
    "make direction",
    *((lambda config, seed: encoder_for(config, seed, None)[0], x) for x in DIRECTIONS[2:]),
    *((BertLanguageModel, x) for x in DIRECTIONS),
    (BertSpanClassifier, "left_to_right+right_to_left"),
    (lambda config, seed: BertClassifier(config, labels=["no", "yes"], seed=seed), "recurrent"),
)
def test_models_come_back(make, direction, tmp_path):
    model = make(replace(CONFIG, attention_direction=direction), seed=1)
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert type(again) is type(model)
    assert again.config.attention_direction == direction
    wanted = outputs(model)
    for name, value in outputs(again).items():
        np.testing.assert_array_equal(np.asarray(value), np.asarray(wanted[name]))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    save_model(again, tmp_path)
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}


def test_hugging_faces_classes_find_no_weight_that_they_would_use_otherwise(tmp_path):
    for direction in ("both", *DIRECTIONS):
        for make in (BertClassifier, BertSpanClassifier):
            head = {"num_classes": 2} if make is BertClassifier else {}
            config = replace(CONFIG, attention_direction=direction)
            save_model(make(config, **head), tmp_path / f"{make.__name__} {direction}")

    both = "left_to_right+right_to_left"
    expected = {  # model type, whether it is a decoder, and the first words of weights' names
        "BertClassifier both": ("bert", False, {"bert", "classifier"}),
        "BertClassifier left_to_right": ("bert", True, {"bert", "classifier", "left_to_right"}),
        "BertSpanClassifier left_to_right": ("bert", True, {"bert", "left_to_right"}),
        "BertClassifier right_to_left": ("bert_right_to_left", False, {"right_to_left"}),
        f"BertClassifier {both}": (f"bert_{both}", False, {"left_to_right", "right_to_left", both}),
    }
    for name, values in expected.items():
        config = json.loads((tmp_path / name / "config.json").read_text())
        weights = load_file(tmp_path / name / "model.safetensors")
        words = {weight.partition(".")[0] for weight in weights}
        assert (config["model_type"], config["is_decoder"], words) == values, name
    names = load_file(tmp_path / "BertClassifier left_to_right" / "model.safetensors")
    prefixed = {name for name in names if name.startswith("left_to_right")}
    assert prefixed == {f"left_to_right.bert.pooler.dense.{part}" for part in ("weight", "bias")}


def test_a_decoder_of_hugging_face_is_a_left_to_right_model_without_its_pooler(tmp_path, caplog):
    encoder = BertEncoder(CONFIG, seed=1)
    save_model(encoder, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "is_decoder": True}))
    loaded = load_model(tmp_path, BertEncoder, seed=2)
    assert loaded.config.attention_direction == "left_to_right"
    assert "pooler.dense.kernel" not in caplog.text and "pooler" in caplog.text
    kernels = [x.blocks[0].attention.query.kernel for x in (loaded, encoder)]
    np.testing.assert_array_equal(*kernels)
    assert not np.array_equal(loaded.pooler.dense.kernel, encoder.pooler.dense.kernel)


def test_what_does_not_fit_the_direction_is_refused(tmp_path):
    tokenizer = BertTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"])
    causal = replace(CONFIG, attention_direction="left_to_right")
    save_model(BertLanguageModel(causal), tmp_path / "ltr", tokenizer)
    save_model(BertPreTrainer(CONFIG), tmp_path / "both", tokenizer)
    for model_class in (BertMaskedLanguageModel, BertPreTrainer):
        with pytest.raises(InputError, match=r"sees one side .* cannot predict masked words"):
            load_model(tmp_path / "ltr", model_class, allow_new_head=True)
    refused("both sides .* predict next words", load_model, tmp_path / "both", BertLanguageModel)
    refused("needs an encoder that sees one side", BertLanguageModel, CONFIG)
    with pytest.raises(InputError, match=r"is a one-sided model .* keras_hub cannot represent"):
        convert(tmp_path / "ltr", tmp_path / "out", "keras_hub")
    assert not (tmp_path / "out").exists()
