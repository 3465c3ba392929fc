import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from safetensors.numpy import load_file
from small_runs import finetuning
from tiny import tiny_config
from watchers import Copied

from bert_tf import BertConfig, BertEncoder, BertTokenizer, save_model
from bert_tf.checkpoints.other_formats.conversion import convert
from bert_tf.commands.finetuning_run import run_finetuning
from bert_tf.errors import InputError
from bert_tf.models.layer_distillation import LayerLoss
from bert_tf.text.opening import load_answerer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "cow", "barn"]


def write_rows(folder, task="classification") -> str:
    """Texts of five words with what is right, and with the opposite; returns their ending."""
    draw = random.Random(1)
    ending, lines = ("conll", []) if task == "tagging" else ("tsv", ["text\tlabel"])
    sides = [PIECES[5:]] if task == "tagging" else [PIECES[5:7], PIECES[7:]]
    rows = [draw.choices(draw.choice(sides), k=5) for _ in range(40)]
    labels = {"regression": (0.0, 1.0), "multi_label": ("other,text", "first,text")}
    for name, wet in (("right", PIECES[5:7]), ("wrong", PIECES[7:])):
        written = [*lines]
        for words in rows:
            if task == "tagging":
                written += [*(f"{word} {'B-WET' if word in wet else 'O'}" for word in words), ""]
            else:
                label = labels.get(task, ("dry", "wet"))[words[0] in wet]
                written.append(f"{' '.join(words)}\t{label}")
        (folder / f"{name}.{ending}").write_text("\n".join(written) + "\n")
    return ending


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    values = {"max_position_embeddings": 8, "initializer_range": 0.2, "dropout": 0.0}
    config = tiny_config(len(PIECES), "2x16x2", intermediate_size=16, **values)
    save_model(BertEncoder(config, seed=1), folder / "encoder", BertTokenizer(PIECES))
    write_rows(folder)
    options = options_of(folder, model=str(folder / "encoder"), train="right.tsv", output="large")
    assert run_finetuning(options).score == 1.0
    return folder


def options_of(folder, **changed):
    """Training of a layer of the teacher, by the teacher, on wrong labels."""
    values = {"model": folder / "student", "train": "wrong.tsv", "output": "small", **changed}
    values |= {name: folder / values[name] for name in ("train", "output")}
    values["validation"] = folder / "right.tsv"
    return finetuning(folder, epochs=8, learning_rate=5e-3, **values)


@pytest.fixture(scope="module")
def student(teacher):
    """A model with every second layer of the teacher's encoder."""
    done = convert(teacher / "encoder", teacher / "student", layers=1)
    large, small = (BertEncoder.from_directory(teacher / x) for x in ("encoder", "student"))
    assert done.model.notes == ["Kept layers 2 of 2."]
    assert len(small.blocks) == 1
    for old, new in zip(large.blocks[1::2], small.blocks, strict=True):
        for one, other in zip(old.get_weights(), new.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)
    refused("3 of them cannot be kept", convert, teacher / "encoder", teacher / "deep", layers=3)


@pytest.mark.slow
@pytest.mark.usefixtures("student")
def test_a_student_learns_from_the_teacher_alone(teacher, tmp_path):
    """With a weight of 1 the labels, which are wrong, have no part; labels match by name."""
    own = load_answerer(teacher / "large" / "best")
    kernel, bias = own.model.head.dense.get_weights()
    own.model.head.dense.set_weights([kernel[:, ::-1], bias[::-1]])
    own.model.labels = own.model.labels[::-1]
    own.save(teacher / "turned")
    by = {"teacher": str(teacher / "turned"), "teacher_weight": 1.0}
    options = options_of(teacher, **by, evaluate_every=20, output=str(tmp_path / "small"))
    assert run_finetuning(options).score == 1.0
    # Another teacher is another run.
    with pytest.raises(InputError, match="teacher_content was"):
        run_finetuning(replace(options, teacher=str(teacher / "large" / "best")))


@pytest.mark.slow
@for_each("task", "multi_label", "regression", "tagging")
def test_students_of_every_kind_learn_from_a_teacher_that_reads_more(teacher, tmp_path, task):
    """The teacher reads 8 tokens, the student 6; its labels are the opposite of the truth."""
    ending = write_rows(tmp_path, task)
    right, wrong = (str(tmp_path / f"{name}.{ending}") for name in ("right", "wrong"))
    data = {"task": task, "train": right, "validation": right}
    large = finetuning(teacher, **data, output=tmp_path / "large", epochs=8, learning_rate=5e-3)
    assert run_finetuning(large).score > 0.8
    by = {"teacher": str(tmp_path / "large" / "best"), "teacher_weight": 1.0}
    small = replace(large, train=wrong, max_length=6, output=str(tmp_path / "small"), **by)
    assert run_finetuning(small).score > 0.8


@pytest.mark.slow
def test_a_narrow_student_learns_the_teachers_states_and_resumes(teacher, tmp_path):
    """The matrix between the widths resumes with the run, and is in no model directory."""
    config = BertConfig.from_json(teacher / "encoder" / "config.json")
    narrow = BertEncoder(replace(config, hidden_size=8, num_hidden_layers=1), seed=2)
    save_model(narrow, tmp_path / "narrow", BertTokenizer(PIECES))
    by = {"teacher": str(teacher / "large" / "best"), "teacher_layers": "hidden_states"}
    paths = {"model": str(tmp_path / "narrow"), "output": str(tmp_path / "whole")}
    options = options_of(teacher, **by, **paths, save_every=11, keep_states=True)

    run_finetuning(options, Copied(tmp_path / "whole", 30, 22, tmp_path / "killed"))
    resumed = run_finetuning(replace(options, output=str(tmp_path / "killed")))
    assert resumed.training.started_at == 22
    files = [tmp_path / run / "last" / "model.safetensors" for run in ("whole", "killed")]
    assert len({file.read_bytes() for file in files}) == 1
    assert not [name for name in load_file(files[0]) if "teacher" in name]
    (state,) = (tmp_path / "whole").rglob("step-00000040.safetensors")
    folders = (tmp_path / "whole" / "best", teacher / "large" / "best")
    compared = (load_answerer(folder).model for folder in folders)
    first = LayerLoss("hidden_states", *compared).variables[0]
    assert np.abs(load_file(state)[first.path] - first.numpy()).max() > 0.01  # learned


@pytest.mark.slow
@pytest.mark.usefixtures("student")
def test_a_student_learns_the_teachers_layers(teacher, tmp_path):
    """Its outputs read the last block's first token alone; the loss reads all layers before it."""
    best = str(teacher / "large" / "best")
    model = load_answerer(best).model
    rows = {"token_ids": [[2, 5, 6, 3]], "segment_ids": [[0] * 4], "padding_mask": [[1] * 4]}
    rows = {name: tf.constant(x) for name, x in rows.items()}

    def trained_on(layers):
        by = {"teacher": best, "teacher_weight": 1.0, "teacher_layers": layers}
        options = options_of(teacher, **by, output=str(tmp_path / str(layers)))
        assert run_finetuning(options).score == 1.0
        return load_answerer(tmp_path / str(layers) / "best").model

    def distance(layers, student):
        called = partial(student, rows), partial(model, rows)
        return LayerLoss(layers, student, model)(*called, rows["padding_mask"])[-1]

    without = trained_on(None)
    for layers in ("hidden_states", "attention_relations"):
        assert distance(layers, trained_on(layers)) < 0.5 * distance(layers, without)
    other = options_of(teacher, teacher=best, teacher_layers=layers, output=str(tmp_path / "None"))
    refused("teacher_layers was None", run_finetuning, other)


@pytest.mark.slow
def test_what_no_teacher_can_teach_is_refused(teacher, tmp_path):
    for name, value in (("teacher_weight", 0.5), ("teacher_layers", "hidden_states")):
        refused(f"--{name} is for --teacher", options_of, teacher, **{name: value})
    good = teacher / "large" / "best"
    base = {"model": str(teacher / "encoder"), "output": "none"}
    other = load_answerer(good)
    replace(other, tokenizer=BertTokenizer([*PIECES[:-1], "farm"])).save(tmp_path / "words")
    with pytest.raises(InputError, match="words has another vocabulary than the student"):
        run_finetuning(options_of(teacher, **base, teacher=str(tmp_path / "words")))
    other.model.labels = ["wet", "cold"]
    other.save(tmp_path / "labels")
    with pytest.raises(InputError, match="has the labels wet, cold, the student dry, wet"):
        run_finetuning(options_of(teacher, **base, teacher=str(tmp_path / "labels")))
    message = r"^the teacher .* which has no classifier: train it first \(bert-tf finetune .*\)$"
    refused(message, run_finetuning, options_of(teacher, **base, teacher=str(teacher / "encoder")))
