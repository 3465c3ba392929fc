"""notebooks/: each runs from its first cell to its last, and learns what it says."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "notebooks"
# What holds after the last cell: scores well above chance, and below what was seen.
CHECKS = {
    "finetune_a_hugging_face_bert": "assert history['val_accuracy'][-1] > 0.4",
    "question_answering": "assert sum(scores.values()) / 4 > 0.4",
    "text_to_served_model": "assert evaluated.scores['accuracy'] > 0.3",
}
# Most of the time goes to training: what is shorter here than for readers.
SHORTER = {
    "finetune_a_hugging_face_bert": {"epochs=3": "epochs=1"},
    "question_answering": {"train_people, 250": "train_people, 160"},
    "text_to_served_model": {"steps=600": "steps=200", "epochs=5": "epochs=3"},
}


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


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CHECKS)
def test_a_notebook_runs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = read(name)
    for long, short in SHORTER[name].items():
        (cell,) = [each for each in notebook.cells if long in each.source]
        cell.source = cell.source.replace(long, short)
    notebook.cells.append(nbformat.v4.new_code_cell(CHECKS[name]))
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=1200, kernel_name="python3", resources=where).execute()
