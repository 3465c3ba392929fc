"""The one resolver of a model's task: what was said, task.json, files of others, the class."""

import json

import pytest
from cases import for_each, refused
from tiny import tiny_config

import bert_tf
from bert_tf.checkpoints.sentence_files import write_sentence_files
from bert_tf.errors import InputError
from bert_tf.tasks.model_task import has_class, is_opened_for, named_task, task_of_model
from bert_tf.tasks.task_table import TASKS
from bert_tf.text.answerer import Answerer

CONFIG = tiny_config(6, intermediate_size=8)
TUNED = {"task": "multi_label", "max_length": 9, "text_column": "q", "thresholds": {"a": 0.1}}
OWN = {"task": "classification", "max_length": 9, "text_column": "q"}
OLD = {"max_length": 9, "text_column": "q"}
KERAS_HUB = {"registered_name": "keras_hub>BertTextClassifier"}


def tagger() -> bert_tf.BertTagger:
    return bert_tf.BertTagger(CONFIG, labels=["O", "B-X"], seed=0)


@for_each(
    "said stored others model to_train expected",
    # What the user said, before everything; settings of task.json, its columns if it is its own
    ({"task": "multi_label"}, TUNED, True, None, False, ("multi_label", "q", 9)),
    ({"max_length": 7}, TUNED, True, None, False, ("multi_label", "q", 7)),
    ({"task": "sst2"}, OWN, False, None, False, ("sst2", "sentence", 9)),
    ({"task": "sst2"}, None, False, tagger, False, ("sst2", "sentence", 128)),
    # task.json, before the files of others and the class
    ({}, TUNED, True, None, False, ("multi_label", "q", 9)),
    ({}, OLD, True, None, False, ("classification", "q", 9)),
    # The files of others, before the class
    ({}, None, True, None, False, ("embedding", "text", 12)),
    ({"task": "embedding"}, None, True, None, False, ("embedding", "text", 12)),
    # The class, where the user chose it, too
    ({}, None, False, tagger, False, ("tagging", "text", 128)),
    ({}, TUNED, True, tagger, False, ("tagging", "text", 128)),
    # To train
    ({"task": "sst2"}, OWN, False, None, True, ("sst2", "sentence", 128)),
    ({}, OWN, True, None, True, ("classification", "q", 9)),
    ({}, {"task": "masked_words"}, False, None, True, ("classification", "text", 128)),
    ({}, None, True, None, True, ("classification", "text", 128)),
    ({}, KERAS_HUB, False, tagger, False, ("tagging", "text", 128)),
)
def test_a_source_overrules_those_below(tmp_path, said, stored, others, model, to_train, expected):
    if stored is not None:
        (tmp_path / "task.json").write_text(json.dumps(stored))
    if others:
        write_sentence_files(tmp_path, pooling="cls", normalize=False, width=8, max_length=12)
    opened = model and model()
    task = task_of_model(tmp_path, said, model=opened, to_train=to_train)
    assert (task.name, task.text, task.max_length) == expected
    if task.name == "multi_label":
        assert task.kind.thresholds == {"a": 0.1}
    if task.name == "embedding":
        assert (task.kind.pooling, task.kind.normalize) == ("cls", False)
    if model is None and not (to_train is False and others and not stored):
        assert named_task(tmp_path, said.get("task"), to_train=to_train)[0] == task.name


def test_without_a_source_only_an_open_model_tells(tmp_path):
    assert task_of_model(tmp_path) is None
    assert task_of_model(None, {"task": "sst2"}) == TASKS["sst2"]
    (tmp_path / "task.json").write_text('{"task": 5}')
    refused(r"task\.json: task is 5: write the name of a task", task_of_model, tmp_path)


def test_thresholds_and_length_survive_a_task_that_is_named(tmp_path):
    model = bert_tf.BertMultiLabelClassifier(CONFIG, labels=["a", "b"], seed=0)
    task = TASKS["multi_label"].with_settings({**TUNED, "thresholds": {"a": 0.1, "b": 0.9}})
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"]
    Answerer(task, model, bert_tf.BertTokenizer(pieces), ["a", "b"]).save(tmp_path)
    for named in (None, "multi_label"):
        opened = bert_tf.BertMultiLabelClassifier.from_preset(tmp_path, task=named)
        assert opened.preprocessor.task == task and opened.preprocessor.is_settled
    with pytest.raises(InputError, match="'tagging' is for BertTagger, not for BertMultiLabel"):
        bert_tf.BertMultiLabelClassifier.from_preset(tmp_path, task="tagging")


@for_each(
    "model name",
    (lambda: bert_tf.BertClassifier(CONFIG, 2), "classification"),
    (lambda: bert_tf.BertMultiLabelClassifier(CONFIG, 2), "multi_label"),
    (lambda: bert_tf.BertRegressor(CONFIG), "regression"),
    (lambda: bert_tf.BertChooser(CONFIG), "choice"),
    (lambda: bert_tf.BertSpanClassifier(CONFIG), "squad"),
    (lambda: bert_tf.BertTagger(CONFIG, labels=["O", "B-X"]), "tagging"),
    (lambda: bert_tf.BertTagger(CONFIG, labels=["NN", "VB"]), "tags"),
    (lambda: bert_tf.BertMaskedLanguageModel(CONFIG), "masked_words"),
    (lambda: bert_tf.BertPreTrainer(CONFIG), "masked_words"),
    (lambda: bert_tf.BertSentenceEncoder(CONFIG), "embedding"),
    (lambda: bert_tf.BertEncoder(CONFIG), "vectors"),
)
def test_a_model_without_a_task_is_opened_by_its_class(model, name):
    """Hugging Face has one class for both kinds of tags, and no task.json."""
    opened = model()
    task = task_of_model(None, model=opened)
    assert task.name == name and is_opened_for(opened, task)
    assert has_class(opened, task) == (not isinstance(opened, bert_tf.BertPreTrainer))
    assert is_opened_for(opened, TASKS["cola"]) == (name == "classification")
