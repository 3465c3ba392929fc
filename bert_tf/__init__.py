"""BERT in Keras 3 and TensorFlow, from raw text to a served SavedModel.

The public names load on first use, so that `import bert_tf` (and `bert-tf --help`) stays quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from bert_tf import extensions, keras_classes
from bert_tf.version import __version__

if TYPE_CHECKING:
    from bert_tf.commands.ask import ask as ask
    from bert_tf.commands.check import check as check
    from bert_tf.commands.convert import convert as convert
    from bert_tf.commands.demo import demo as demo
    from bert_tf.commands.ensemble import ensemble as ensemble
    from bert_tf.commands.evaluate import evaluate as evaluate
    from bert_tf.commands.export import export_model as export_model
    from bert_tf.commands.features import features as features
    from bert_tf.commands.finetune import finetune as finetune
    from bert_tf.commands.index import index as index
    from bert_tf.commands.inspect import inspect as inspect
    from bert_tf.commands.migrate import migrate as migrate
    from bert_tf.commands.monitor import monitor as monitor
    from bert_tf.commands.predict import predict as predict
    from bert_tf.commands.pretrain import pretrain as pretrain
    from bert_tf.commands.search import search as search
    from bert_tf.commands.serve import serve as serve
    from bert_tf.commands.shards import make_shards as make_shards
    from bert_tf.commands.tasks import list_tasks as list_tasks
    from bert_tf.commands.vocab import learn_vocabulary as learn_vocabulary
    from bert_tf.config import BertConfig as BertConfig
    from bert_tf.models.encoder import BertEncoder as BertEncoder
    from bert_tf.models.language_model import BertMaskedLanguageModel as BertMaskedLanguageModel
    from bert_tf.models.language_model import BertPreTrainer as BertPreTrainer
    from bert_tf.models.loading import load_model as load_model
    from bert_tf.models.opening import open_preset as open_preset
    from bert_tf.models.preprocessor import BertPreprocessor as BertPreprocessor
    from bert_tf.models.saving import save_model as save_model
    from bert_tf.models.task_models import BertChooser as BertChooser
    from bert_tf.models.task_models import BertClassifier as BertClassifier
    from bert_tf.models.task_models import BertMultiLabelClassifier as BertMultiLabelClassifier
    from bert_tf.models.task_models import BertRegressor as BertRegressor
    from bert_tf.models.task_models import BertSentenceEncoder as BertSentenceEncoder
    from bert_tf.models.task_models import BertSpanClassifier as BertSpanClassifier
    from bert_tf.models.task_models import BertTagger as BertTagger
    from bert_tf.paper.command import reproduce as reproduce
    from bert_tf.serving.predictor import Predictor as Predictor
    from bert_tf.tokenization.packing import Packer as Packer
    from bert_tf.tokenization.tokenizer import BertTokenizer as BertTokenizer
    from bert_tf.training.optimizer import AdamWeightDecay as AdamWeightDecay
    from bert_tf.training.schedule import WarmupLinearDecay as WarmupLinearDecay

_PUBLIC: dict[str, tuple[str, ...]] = {
    "bert_tf.commands.ask": ("ask",),
    "bert_tf.commands.check": ("check",),
    "bert_tf.commands.convert": ("convert",),
    "bert_tf.commands.demo": ("demo",),
    "bert_tf.commands.ensemble": ("ensemble",),
    "bert_tf.commands.features": ("features",),
    "bert_tf.commands.index": ("index",),
    "bert_tf.commands.inspect": ("inspect",),
    "bert_tf.commands.migrate": ("migrate",),
    "bert_tf.commands.monitor": ("monitor",),
    "bert_tf.commands.serve": ("serve",),
    "bert_tf.commands.tasks": ("list_tasks",),
    "bert_tf.paper.command": ("reproduce",),
    "bert_tf.commands.evaluate": ("evaluate",),
    "bert_tf.commands.export": ("export_model",),
    "bert_tf.commands.finetune": ("finetune",),
    "bert_tf.commands.predict": ("predict",),
    "bert_tf.commands.pretrain": ("pretrain",),
    "bert_tf.commands.search": ("search",),
    "bert_tf.commands.shards": ("make_shards",),
    "bert_tf.commands.vocab": ("learn_vocabulary",),
    "bert_tf.models.loading": ("load_model",),
    "bert_tf.config": ("BertConfig",),
    "bert_tf.models.opening": ("open_preset",),
    "bert_tf.models.saving": ("save_model",),
    "bert_tf.serving.predictor": ("Predictor",),
    "bert_tf.tokenization.packing": ("Packer",),
    "bert_tf.tokenization.tokenizer": ("BertTokenizer",),
    "bert_tf.training.optimizer": ("AdamWeightDecay",),
    "bert_tf.training.schedule": ("WarmupLinearDecay",),
}
_PUBLIC |= {
    home: names for home, names in keras_classes.HOMES.items() if home.startswith("bert_tf.models.")
}
_EXTENSIONS = {  # tables of the lower layers -> what the paper's comparisons add to them
    "architectures": (
        "bert_tf.paper.architectures:LeftToRight",
        "bert_tf.paper.architectures:RightToLeft",
        "bert_tf.paper.architectures:SideBySide",
        "bert_tf.paper.architectures:Recurrent",
    ),
    "feature architectures": ("bert_tf.paper.architectures:OnFeatures",),
    "models": ("bert_tf.paper.language_model:BertLanguageModel",),
    "parts": ("bert_tf.paper.architectures:PARTS",),
    "layer weights": ("bert_tf.paper.lstm:WEIGHTS", "bert_tf.paper.feature_encoder:WEIGHTS"),
    "finetuning options": ("bert_tf.paper.command_options:FeatureOptions",),
    "pretraining options": ("bert_tf.paper.command_options:ObjectiveOptions",),
}
_HOMES = {name: home for home, names in _PUBLIC.items() for name in names}
__all__ = ["__version__", *sorted(_HOMES)]


keras_classes.register()
for _table, _entries in _EXTENSIONS.items():
    extensions.add(_table, *_entries)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bert_tf' has no attribute {name!r}")
    startup = importlib.import_module("bert_tf.startup")
    with startup.without_chatter():
        return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOMES]
