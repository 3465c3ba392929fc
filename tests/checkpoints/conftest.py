import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from stored_models import CONFIG, PIECES, save_tensors, tensors_of

from bert_tf import BertClassifier, BertEncoder, BertPreTrainer, BertTokenizer, save_model
from bert_tf.checkpoints.other_formats.tensorflow_checkpoint import tf1_name

GOLDEN = Path(__file__).parents[1] / "golden"
KINDS = {
    "encoder": lambda: BertEncoder(CONFIG, seed=1),
    "pretrainer": lambda: BertPreTrainer(CONFIG, seed=1),
    "classifier": lambda: BertClassifier(CONFIG, labels=["no", "perhaps", "yes"], seed=1),
}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    draw = np.random.default_rng(1)
    for name, make in KINDS.items():
        model = make()
        for variable in model.trainable_variables:
            variable.assign(draw.normal(size=variable.shape, scale=0.4))
        save_model(model, root / name, BertTokenizer(PIECES))
    return root


@pytest.fixture(scope="session")
def unpacked(made_once):
    def unpack(path):
        with tarfile.open(GOLDEN / f"{path.name}.tar.xz") as archive:
            archive.extractall(path, filter="data")

    return lambda name: made_once(name, unpack)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def published(models, tmp_path):
    """A folder as Google's archives unpack to, with what else its scripts leave in one."""

    def make(
        folder="uncased_L-2_H-8_A-2",
        prefix="bert_model.ckpt",
        kind="pretrainer",
        change=lambda tensors: None,
        pieces=PIECES,
    ):
        folder = tmp_path / folder
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, tensor in tensors_of(models / kind).items():
            theirs = tf1_name(name)
            tensors[theirs] = tensor.T if theirs.endswith("/kernel") else tensor
        for name in list(tensors):
            tensors |= dict.fromkeys((f"{name}/adam_m", f"{name}/adam_v"), np.ones(3, np.float32))
        tensors["global_step"] = np.array(1000, np.int64)
        change(tensors)
        save_tensors(folder / prefix, tensors)
        values = {**CONFIG.to_dict(), "hidden_act": "gelu"}
        del values["model_type"], values["layer_norm_eps"]
        (folder / "bert_config.json").write_text(json.dumps(values))
        (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
        return folder

    return make
