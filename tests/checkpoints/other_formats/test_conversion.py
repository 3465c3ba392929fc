import json
import shutil
from dataclasses import replace

import pytest
from cases import for_each, refused
from safetensors.numpy import load_file
from stored_models import CONFIG, PIECES, assert_same_tensors, save_directory, tensors_of

from bert_tf import BertConfig, BertTokenizer, load_model
from bert_tf.checkpoints.other_formats.conversion import convert, read_model
from bert_tf.checkpoints.sentence_files import read_sentence_files
from bert_tf.models.saving import save_model
from bert_tf.models.task_models import BertClassifier, BertMultiLabelClassifier, BertSentenceEncoder

KERAS_HUB = pytest.param("keras_hub", marks=pytest.mark.keras_hub)
LEFT_OUT = {("keras_hub", "pretrainer"): "cls.seq_relationship."}  # no place for it


def files_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@for_each("to", "tf1", KERAS_HUB)
def test_round_trip_to_the_last_bit(models, kind, to, out):
    conversion = convert(models / kind, out / "there", to)
    assert conversion.source.format == "hugging_face"
    back = convert(out / "there", out / "back")
    assert back.source.format == to
    assert conversion.files == files_below(out / "there")
    lost = LEFT_OUT.get((to, kind), "-")
    assert_same_tensors(tensors_of(out / "back"), tensors_of(models / kind), without=lost)
    assert (lost != "-") == any("is left out" in note for note in conversion.model.notes)

    ours, theirs = (BertConfig.from_json(d / "config.json") for d in (models / kind, out / "back"))
    expected = replace(ours, extra=theirs.extra)
    if to == "tf1":  # which has one name for both
        expected = replace(expected, hidden_act="gelu")
    elif kind == "classifier":  # it keeps no labels
        expected = replace(expected, id2label={0: "LABEL_0", 1: "LABEL_1", 2: "LABEL_2"})
    assert theirs == expected
    assert (out / "back" / "vocab.txt").read_bytes() == (models / kind / "vocab.txt").read_bytes()
    tokenizer = BertTokenizer.from_directory(out / "back")
    assert tokenizer.settings == BertTokenizer(PIECES).settings


def test_same_bytes_as_save_model(models, kind, out):
    assert convert(models / kind, out).files == files_below(out) == files_below(models / kind)
    for path in out.iterdir():
        if path.name != "model.safetensors":  # the order of the tensors is its own
            assert path.read_bytes() == (models / kind / path.name).read_bytes(), path.name
    ours, theirs = (load_file(d / "model.safetensors") for d in (out, models / kind))
    assert_same_tensors(ours, theirs)
    mode = (out / "config.json").stat().st_mode
    assert (out / "model.safetensors").stat().st_mode == mode


@pytest.mark.keras_hub
def test_a_classifier_of_tokens_stays_one(models, out, tmp_path):
    config = replace(CONFIG, extra={"architectures": ["BertForTokenClassification"]})
    tensors = tensors_of(models / "classifier")
    del tensors["pooler.dense.weight"], tensors["pooler.dense.bias"]
    save_directory(tmp_path / "tokens", config, tensors)
    convert(tmp_path / "tokens", out)
    written = json.loads((out / "config.json").read_text())
    assert written["architectures"] == ["BertForTokenClassification"]
    assert written["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}
    for to in ("tf1", "keras_hub"):  # whose classifiers are of sequences
        pooled = tmp_path / f"pooled-{to}"  # KerasHub has no model without a pooler
        save_directory(pooled, config, tensors_of(models / "classifier"))
        conversion = convert(pooled, tmp_path / to, to)
        assert any("classifier is left out" in note for note in conversion.model.notes)
        assert not read_model(tmp_path / to)[1].has("classifier.")


def test_a_classifier_without_a_class_is_not_one_of_texts(models, out, published, tmp_path):
    tensors = tensors_of(models / "classifier")
    for name in ("weight", "bias"):
        tensors.pop(f"pooler.dense.{name}")
    save_directory(tmp_path / "model", CONFIG, tensors)
    conversion = convert(tmp_path / "model", out)
    assert not conversion.model.has("classifier.")
    assert "The classifier is left out, as nothing says" in conversion.model.notes[0]
    assert '"architectures": ["BertForSequenceClassification"]' in conversion.model.notes[0]
    # With a pooler it may be one: as of run_classifier.py.
    conversion = convert(published("uncased_one", kind="classifier"), out, overwrite=True)
    assert "is taken to be of whole texts" in conversion.model.notes[0]
    assert conversion.model.problem_type == "single_label_classification"
    # A layer of one's own on a bare encoder.
    _, model = read_model(models / "classifier")
    bare = replace(CONFIG, extra={"architectures": ["BertModel"]})
    save_directory(tmp_path / "own", bare, model.tensors)
    refused("BertModel, which has no classifier", BertClassifier.from_directory, tmp_path / "own")


@for_each("to", "tf1", pytest.param("keras_hub", marks=[pytest.mark.keras_hub, pytest.mark.slow]))
def test_several_labels_stay_several(models, out, tmp_path, to):
    source = tmp_path / "several"
    save_model(BertMultiLabelClassifier(CONFIG, labels=["a", "b"]), source, BertTokenizer(PIECES))
    conversion = convert(source, out / "there", to)
    assert any("problem_type" in note or "sigmoid" in note for note in conversion.model.notes)
    convert(out / "there", out / "back")
    assert isinstance(load_model(out / "back"), BertMultiLabelClassifier)


def test_vocabulary_from_tokenizer_json(models, out, tmp_path):
    """As Hugging Face's fifth version writes it in place of vocab.txt."""
    source = tmp_path / "model"
    shutil.copytree(models / "encoder", source)
    for name in ("vocab.txt", "tokenizer_config.json"):
        (source / name).unlink()
    values = {"normalizer": {"type": "BertNormalizer", "lowercase": False}}
    values["model"] = {"type": "WordPiece", "vocab": {p: i for i, p in enumerate(PIECES)}}
    (source / "tokenizer.json").write_text(json.dumps(values))
    assert "vocab.txt is made from tokenizer.json." in convert(source, out).model.notes
    tokenizer = BertTokenizer.from_directory(out)
    assert tokenizer.vocabulary == PIECES
    assert tokenizer.settings["do_lower_case"] is False


@pytest.mark.keras_hub
def test_task_json(models, out, tmp_path):
    source = tmp_path / "tuned"
    shutil.copytree(models / "classifier", source)
    (source / "task.json").write_bytes(b'{"text_column": "sentence",\n "thresholds": {"no": 1}}')
    assert "task.json" in convert(source, out / "same").files
    assert (out / "same" / "task.json").read_bytes() == (source / "task.json").read_bytes()
    notes = convert(source, out / "preset", "keras_hub").model.notes
    assert any(note.startswith("task.json (text_column, thresholds) is left") for note in notes)
    convert(out / "preset", out / "back")  # KerasHub's own task.json is none of ours
    assert not (out / "back" / "task.json").exists()


def test_vectors_of_texts_are_made_as_before(models, out, tmp_path):
    source = tmp_path / "vectors"
    model = BertSentenceEncoder(CONFIG, pooling="cls", normalize=False)
    save_model(model, source, BertTokenizer(PIECES), max_length=6)
    prompts = {"prompts": {"query": "q: "}, "default_prompt_name": "query"}
    files = {"sentence_bert_config.json": {"max_seq_length": 6, "do_lower_case": True}}
    files["config_sentence_transformers.json"] = prompts
    for name, values in files.items():
        (source / name).write_text(json.dumps(values))
    for _ in range(2):
        convert(source, out / "same", overwrite=True)
    assert read_sentence_files(out / "same") == read_sentence_files(source)
    for name, values in files.items():
        assert json.loads((out / "same" / name).read_text()) == values
    notes = " ".join(convert(source, out / "original", "tf1").model.notes)
    for value in ("(pooling 'cls', normalize False", "prompt 'q: '", "max_length 6) is left out"):
        assert value in notes


@for_each("to", "tf1", KERAS_HUB)
def test_pad_token_and_switches(models, out, tmp_path, to):
    _, model = read_model(models / "pretrainer")
    pieces = [*PIECES[1:5], "[PAD]", *PIECES[5:]]
    save_directory(tmp_path / "odd", replace(CONFIG, pad_token_id=4), model.tensors)
    BertTokenizer(pieces, strip_accents=False, tokenize_chinese_chars=False).save(tmp_path / "odd")
    notes = " ".join(convert(tmp_path / "odd", out / "there", to).model.notes)
    if to != "keras_hub":  # which has both switches
        assert "ignores strip_accents false" in notes
        assert "ignores tokenize_chinese_chars false" in notes
        assert "pads with id 0, this model with 4" in notes
    convert(out / "there", out / "back")
    assert BertConfig.from_json(out / "back" / "config.json").pad_token_id == 4
    if to == "keras_hub":
        (tmp_path / "odd" / "vocab.txt").unlink()
        notes = " ".join(convert(tmp_path / "odd", out / "bare", to).model.notes)
        assert "pad_token_id 4 is left out" in notes


def test_the_output_is_whole_or_absent(models, out, monkeypatch):
    def fail(*args, **kwargs):
        raise OSError("disk full")

    convert(models / "encoder", out)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr("bert_tf.checkpoints.weights_files.save_file", fail)
        with pytest.raises(OSError, match="disk full"):
            convert(models / "pretrainer", out, overwrite=True)
    for source, told in ((models / "pretrainer", "is not empty"), (out, "is the input")):
        refused(told, convert, source, out, overwrite=source == out)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert [path.name for path in out.parent.iterdir()] == ["out"]
