"""What the tests of the server share: one tiny export."""

from pathlib import Path

import pytest

from bert_tf import BertConfig, BertTokenizer
from bert_tf.models.task_models import BertClassifier
from bert_tf.serving.export import export
from bert_tf.serving.signatures import RawTextModel
from bert_tf.tasks.classification import Classification

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "##s", "farm", "the", "é", "。"]


@pytest.fixture(scope="session")
def saved_models(made_once) -> Path:
    """A folder with version 1 of the classifier `where`, which takes `text`."""

    def make(folder: Path) -> None:
        config = BertConfig(
            vocab_size=len(PIECES), hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
            intermediate_size=16, initializer_range=1.0,
        )  # fmt: skip
        labels = ["land", "wasser", "日"]
        kind, tokenizer = Classification(), BertTokenizer(PIECES)
        model = BertClassifier(config, labels=labels, seed=0)
        module = RawTextModel(
            tokenizer,
            model,
            {"serving_default": ["text"]},
            lambda texts: kind.answers(model(kind.model_inputs(texts, tokenizer, 8)), labels),
        )
        export(module, "where", root=folder)

    return made_once("served", make)
