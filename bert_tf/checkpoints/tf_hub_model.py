"""SavedModels of TF Hub's BERT encoders, such as "bert_en_uncased_L-12_H-768_A-12".

Model Garden's code wrote them. Variables are found by their names; the graph is not loaded, so
nothing in it runs.
"""

import re

from bert_tf.checkpoints.formats import Location
from bert_tf.checkpoints.model_garden_checkpoint import Graph, config_of
from bert_tf.checkpoints.stored_model import StoredModel
from bert_tf.checkpoints.tensorflow_checkpoint import OBJECT_GRAPH, Checkpoint
from bert_tf.checkpoints.weight_names import BLOCK, EMBEDDINGS, POOLER
from bert_tf.errors import InputError
from bert_tf.tokenization.tokenizer import VOCABULARY_FILE, BertTokenizer
from bert_tf.tokenization.vocabulary import read_vocabulary

_BLOCKS = "transformer/layer_"
_MASKED_WORDS = "cls/predictions/"
# Variables of versions 1 and 2 -> since version 3.
_OLDER = {
    r"\bembedding_postprocessor/layer_norm/": "embeddings/layer_norm/",
    r"\bembedding_postprocessor/type_embeddings$": "type_embeddings/embeddings",
    r"\bembedding_postprocessor/position_embeddings$": "position_embedding/embeddings",
    r"\bencoder/layer_(\d+)/": rf"{_BLOCKS}\1/",
    r"/self_attention_output/": "/self_attention/attention_output/",
}


def current_name(name: str) -> str:
    """A variable's name since version 3, without the model's scope."""
    for older, newer in _OLDER.items():
        name = re.sub(older, newer, name)
    starts = (each.tf_hub for each in (*EMBEDDINGS, POOLER))
    return re.sub(rf"^.*?\b(?=({'|'.join([*starts, _BLOCKS, _MASKED_WORDS])}))", "", name)


def read_tf_hub(location: Location, do_lower_case: bool | None = None) -> StoredModel:
    """Reads an encoder, its masked language model head if it has one, and its vocabulary."""
    folder = location.folder
    vocabulary = folder / "assets" / VOCABULARY_FILE
    if OBJECT_GRAPH not in Checkpoint(location.path).names:
        variables = location.path.parent
        raise InputError(
            f"{folder} is a module of TensorFlow 1's Hub: put the model's bert_config.json and "
            f"vocab.txt into {variables}, and convert {location.path}."
        )
    graph = Graph(location.path)
    layers = graph.layers_by_name(current_name)
    if EMBEDDINGS[0].tf_hub not in layers:
        what = "only a preprocessor" if vocabulary.is_file() else "no BERT encoder"
        raise InputError(
            f"{folder} holds {what} of TF Hub: give the SavedModel of an encoder such as "
            "bert_en_uncased_L-12_H-768_A-12, which holds weights and vocabulary. (For an export "
            "of bert-tf give the model directory that it was made from.)"
        )
    for each in (*EMBEDDINGS, POOLER):
        graph.take(each.name, layers.get(each.tf_hub))
    blocks = 0
    while f"{_BLOCKS}{blocks}/{BLOCK[0].tf_hub}" in layers:
        for each in BLOCK:
            scope = f"{_BLOCKS}{blocks}/{each.tf_hub}"
            graph.take(f"encoder.layer.{blocks}.{each.name}", layers.get(scope))
        blocks += 1
    for name in ("dense", "LayerNorm"):
        transform = f"{_MASKED_WORDS}transform/{name}"
        graph.take(transform.replace("/", "."), layers.get(transform))
    bias = graph.read(layers.get(f"{_MASKED_WORDS}output_bias"), "bias")
    if bias is not None:
        graph.tensors["cls.predictions.bias"] = bias
    notes: list[str] = []
    model = StoredModel(config_of(folder, graph, blocks, notes), graph.tensors, location.path)
    model.notes = notes
    model.check_tensors()
    if do_lower_case is None and (said := graph.read(0, "do_lower_case")) is not None:
        do_lower_case = bool(said)
    if vocabulary.is_file():
        if do_lower_case is None:
            raise InputError(
                f"{folder} does not say whether it is uncased: give --do_lower_case true if its "
                "training text was lower-cased, else --do_lower_case false."
            )
        pieces = read_vocabulary(vocabulary).pieces
        model.tokenizer = BertTokenizer(pieces, do_lower_case=do_lower_case)
    return model
