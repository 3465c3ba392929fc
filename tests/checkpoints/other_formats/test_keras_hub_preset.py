from dataclasses import replace

import numpy as np
import pytest
from stored_models import (
    CONFIG,
    INPUTS,
    PIECES,
    assert_close,
    assert_same_tensors,
    refusal,
    save_directory,
    tensors_of,
)

from bert_tf import BertClassifier, BertConfig, BertEncoder, BertTokenizer, load_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.errors import InputError

INT32 = {name: value.astype("int32") for name, value in INPUTS.items()}
pytestmark = pytest.mark.keras_hub


@pytest.fixture(scope="module")
def keras_nlp():
    import keras_nlp

    return keras_nlp


def test_keras_hub_computes_the_same(keras_nlp, models, out):
    convert(models / "pretrainer", out, "keras_hub")
    backbone = keras_nlp.models.BertBackbone.from_preset(str(out))
    theirs = backbone(INT32)
    ours = BertEncoder.from_directory(models / "pretrainer")(INPUTS)
    assert_close(ours["pooled_output"], theirs["pooled_output"])
    tokens = INPUTS["padding_mask"] == 1
    outputs = (np.asarray(x["sequence_output"])[tokens] for x in (ours, theirs))
    assert_close(*outputs)
    task = keras_nlp.models.BertMaskedLM.from_preset(str(out))
    bias = tensors_of(models / "pretrainer")["cls.predictions.bias"]
    np.testing.assert_array_equal(task.masked_lm_head._bias, bias)
    ids = keras_nlp.models.BertTokenizer.from_preset(str(out))(["A bc", "éa"])
    np.testing.assert_array_equal(ids[0], BertTokenizer(PIECES).tokenize(["A bc"])[0])


def test_a_classifier_of_a_preset_says_what_it_computes(keras_nlp, models, out, tmp_path):
    conversion = convert(models / "classifier", tmp_path / "preset", "keras_hub")
    assert any("no, perhaps, yes" in note for note in conversion.model.notes)
    theirs = keras_nlp.models.BertTextClassifier
    task = theirs.from_preset(str(tmp_path / "preset"), preprocessor=None)
    assert_close(load_model(models / "classifier", BertClassifier)(INPUTS), task(INT32))
    backbone = keras_nlp.models.BertBackbone.from_preset(str(tmp_path / "preset"))
    task = keras_nlp.models.BertTextClassifier(backbone, 3, activation="softmax", dropout=0.3)
    task.save_to_preset(str(tmp_path / "task"))
    conversion = convert(tmp_path / "task", out / "task")
    assert any("The activation softmax" in note for note in conversion.model.notes)
    assert conversion.model.problem_type == "single_label_classification"
    assert BertConfig.from_json(out / "task" / "config.json").classifier_dropout == 0.3
    path = tmp_path / "preset" / "preprocessor.json"
    cut = path.read_text().replace('"sequence_length": 10', '"sequence_length": 7')
    (tmp_path / "task" / "preprocessor.json").write_text(cut)
    notes = convert(tmp_path / "task", out / "task", overwrite=True).model.notes
    assert any("sequence_length 7 is left out: give it as --max_length" in n for n in notes)
    path = tmp_path / "task" / "task.json"
    path.write_text(path.read_text().replace('"softmax"', '"relu"'))
    assert "has the activation 'relu'" in refusal(tmp_path / "task", tmp_path / "no")
    (tmp_path / "task" / "task.weights.h5").unlink()
    conversion = convert(tmp_path / "task", out / "bare")
    assert "the head of the BertTextClassifier is left out" in conversion.model.notes[0]
    assert conversion.model.problem_type is None  # whose advice is to export
    assert_same_tensors(tensors_of(out / "bare"), tensors_of(models / "classifier"), "classifier.")


def test_presets_made_elsewhere(keras_nlp, models, out, tmp_path):
    sizes = {"vocabulary_size": 19, "num_layers": 2, "num_heads": 2, "hidden_dim": 8}
    backbone = keras_nlp.models.BertBackbone(**sizes, intermediate_dim=12, max_sequence_length=10)
    backbone.save_to_preset(str(tmp_path / "bare"))
    conversion = convert(tmp_path / "bare", out)
    assert conversion.source.format == "keras_hub"
    assert "no vocabulary" in conversion.model.notes[-1]
    theirs = backbone(INT32)
    ours = load_model(out)(INPUTS)
    assert_close(ours["pooled_output"], theirs["pooled_output"])

    # Their tokenizer keeps accents unless it is told otherwise.
    tokenizer = keras_nlp.models.BertTokenizer(vocabulary=PIECES, lowercase=True)
    tokenizer.save_to_preset(str(tmp_path / "bare"))
    conversion = convert(tmp_path / "bare", out, overwrite=True)
    assert conversion.model.tokenizer.settings["strip_accents"] is False
    assert any("keeps accents" in note for note in conversion.model.notes)
    path = tmp_path / "bare" / "tokenizer.json"
    path.write_text(path.read_text().replace('"split": true', '"split_on_cjk": false'))
    with pytest.raises(InputError, match="is not empty"):
        convert(tmp_path / "bare", out)
    conversion = convert(tmp_path / "bare", out, overwrite=True)
    assert conversion.model.tokenizer.settings["tokenize_chinese_chars"] is False

    (tmp_path / "bare" / "model.weights.h5").write_bytes(b"cut")
    assert "not a complete KerasHub preset" in refusal(tmp_path / "bare", tmp_path / "no")
    config = tmp_path / "bare" / "config.json"
    config.write_text(config.read_text().replace("BertBackbone", "RobertaBackbone"))
    assert "RobertaBackbone" in refusal(tmp_path / "bare", tmp_path / "no")


def test_what_keras_hub_cannot_compute(models, out, tmp_path):
    tensors = tensors_of(models / "encoder")
    save_directory(tmp_path / "relu", replace(CONFIG, hidden_act="relu"), tensors)
    assert "'relu'" in refusal(tmp_path / "relu", out, "keras_hub")
    for name in ("weight", "bias"):
        del tensors[f"pooler.dense.{name}"]
    save_directory(tmp_path / "bald", CONFIG, tensors)
    assert "has a pooler" in refusal(tmp_path / "bald", out, "keras_hub")
    erf = replace(CONFIG, hidden_act="gelu", layer_norm_eps=1e-6, hidden_dropout_prob=0.3)
    save_directory(tmp_path / "erf", erf, tensors_of(models / "encoder"))
    notes = " ".join(convert(tmp_path / "erf", out, "keras_hub").model.notes)
    assert all(part in notes for part in ("tanh approximation", "1e-06", "0.3"))
