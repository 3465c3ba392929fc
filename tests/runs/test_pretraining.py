import functools
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
from cases import for_each, refused
from preloaded import start_code
from pretraining_runs import killed, options, run, two_lengths, weights
from run_logs import scalar_events
from safetensors.numpy import load_file

import bert_tf.training.loss_scale
from bert_tf import BertConfig, load_model
from bert_tf.commands.pretraining_data import PretrainingData
from bert_tf.commands.pretraining_run import run_pretraining
from bert_tf.errors import InputError
from bert_tf.files.atomic import hold_output, temporary_name
from bert_tf.paper.architectures import DIRECTIONS
from bert_tf.paper.language_model import BertLanguageModel
from bert_tf.pipelines.shards.folder import open_shards
from bert_tf.pipelines.shards.pretraining_batches import pretraining_batches

SETTINGS = {
    "masked_lm_prob": 0.3,
    "mask_token_share": 0.6,
    "random_token_share": 0.3,
    "whole_word_masking": True,
    "max_ngram": 2,
    "schedule": "warmup_stable_decay",
    "decay_share": 0.5,
    "gradient_accumulation_steps": 2,
}


@pytest.fixture(scope="module")
def rows(made_shards):
    """Shards of rows with several instances, masked when they are read."""
    options = "--max-seq-length 32 --masking dynamic --short-seq-prob 0.9 --instances-per-row 4"
    return made_shards("rows", options)


@pytest.fixture(scope="module")
def undisturbed(rows, small_config, tmp_path_factory):
    """The run directory and the lines of a run; see `killed`."""
    output = tmp_path_factory.mktemp("undisturbed") / "run"
    return output, run(options(rows, small_config, output, **SETTINGS), copy_at=7)


@pytest.mark.slow
def test_a_killed_run_on_rows_of_instances_goes_on_as_if_nothing_had_happened(
    undisturbed, rows, small_config, tmp_path
):
    """What it left half-written is nothing.

    A process that is killed while it takes later events out of the logs leaves them twice.
    """
    with pytest.raises(InputError, match="shards without --instances_per_row"):
        run(options(rows, small_config, tmp_path / "no", objective="bilm"))
    output, lines = undisturbed
    shutil.copytree(killed(output), tmp_path, dirs_exist_ok=True)
    (events,) = (tmp_path / "logs" / "train").glob("*.tfevents.*")
    checkpoint = tmp_path / "checkpoints" / "step-00000009.safetensors"
    with hold_output(tmp_path):
        for path in (events, checkpoint):
            temporary_name(path).write_bytes(events.read_bytes())
    another = temporary_name(tmp_path / "vocab")  # of a command that is under way in the folder
    another.touch()
    after = run(options(rows, small_config, tmp_path, **SETTINGS))
    assert after == [line for line in lines if line[0] > 6]
    assert list(tmp_path.rglob(".*.tmp")) == [another]
    steps = [n for kind, n, tag, _ in scalar_events(tmp_path) if (kind, tag) == ("train", "loss")]
    assert sorted(steps) == list(range(1, 9))
    assert weights(tmp_path) == weights(output)


@pytest.mark.slow
@for_each("objective", "ltr", "ltr+rtl", "bilm")
def test_a_language_model_is_trained_resumed_and_trained_on(
    objective, dynamic_shards, shards, small_config, tmp_path
):
    made = options(dynamic_shards, small_config, tmp_path / "run", seed=3, objective=objective)
    lines = run(made, copy_at=7)
    if objective == "bilm":  # its two models are most of what a checkpoint can hold
        assert run(replace(made, output=str(killed(made.output)))) == [x for x in lines if x[0] > 6]
        assert weights(killed(made.output)) == weights(made.output)
    for _, _, scalars in lines:
        for name in objective.replace("bilm", "ltr+rtl").split("+"):
            assert {"loss", f"{name}_loss", f"{name}_accuracy"} <= set(scalars)
        assert not any(part in name for name in scalars for part in ("nsp", "mlm"))
    assert lines[-1][2]["loss"] < lines[0][2]["loss"]
    config = BertConfig.from_json(small_config)
    new = BertLanguageModel(replace(config, attention_direction=DIRECTIONS[objective]), seed=3)
    trained = load_model(tmp_path / "run" / "last")
    assert isinstance(trained, BertLanguageModel)
    assert trained.config == replace(new.config, extra=trained.config.extra)
    for before, after in zip(new.trainable_variables, trained.trainable_variables, strict=True):
        if "pooler" not in before.path:
            assert not np.array_equal(before.numpy(), after.numpy()), before.path

    # It goes on with its own objective, on masked shards whose text is restored.
    start = str(tmp_path / "run" / "last")
    if objective == "ltr+rtl":
        more = options(shards, small_config, tmp_path / "more", model=start, steps=2)
        lines = run(more)
        assert lines and all({"ltr_loss", "rtl_loss"} <= set(scalars) for _, _, scalars in lines)
    cure = re.escape(f"mlm cannot train: give --objective {objective},")
    refused(cure, run, options(shards, small_config, tmp_path / "no", model=start, objective="mlm"))
    with pytest.raises(InputError, match="max_ngram is for masked words"):
        run(options(shards, small_config, tmp_path / "no", model=start, max_ngram=2))
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_the_last_steps_are_taken_on_long_sequences(shards_of_two_lengths, small_config, tmp_path):
    """The paper's schedule: one run, one learning rate, positions beyond the short ones last.

    Six steps on short sequences and four on long ones; killed in each phase, it ends as if nothing
    had happened.
    """
    config = json.loads(small_config.read_text())
    small_config = tmp_path / "config.json"
    small_config.write_text(json.dumps({**config, "max_position_embeddings": 40}))
    how = {"save_every": 2, "keep": 10, "long_gradient_accumulation_steps": 2}
    whole = two_lengths(shards_of_two_lengths, small_config, tmp_path / "run", **how)
    lines = run(whole, copy_at=5)
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 6, 8, 10]
    rates = [scalars["learning_rate"] for _, kind, scalars in lines if kind == "train"]
    assert rates == pytest.approx([0, *(1e-3 * (1 - step / 10) for step in range(1, 10))], abs=1e-9)

    def position_moments(step):
        """Adam's means of the squared gradients of the position embeddings, [40, 16]."""
        tensors = load_file(tmp_path / f"run/checkpoints/step-{step:08d}.safetensors")
        return tensors["adam_weight_decay/embeddings_position_embeddings_embeddings_square"]

    assert position_moments(6)[:16].all() and not position_moments(6)[16:].any()
    assert position_moments(8)[:32].all() and not position_moments(8)[32:].any()

    first = replace(whole, output=str(killed(whole.output)))
    in_first = run(first, copy_at=9)
    second = replace(whole, output=str(killed(first.output)))
    in_second = run(second)
    assert in_first[0][0] == 5 and in_second[0][0] == 9
    for rest in (in_first, in_second):
        assert rest == lines[-len(rest) :]
    assert weights(second.output) == weights(first.output) == weights(whole.output)


@pytest.mark.slow
def test_a_killed_run_on_mixed_shards_in_half_precision_goes_on_with_the_same_shares_alone(
    shards, dynamic_shards, small_config, tmp_path, monkeypatch
):
    # The scale of the loss changes every so many steps: 2 and 4 of them are half-way when killed.
    monkeypatch.setattr(bert_tf.training.loss_scale, "_GROWTH_STEPS", 3)
    other = shutil.copytree(shards, tmp_path / "other")
    settings = {"precision": "mixed_float16", "steps": 7, "save_every": 1}
    mixed = {"mix_shards": [f"{other}=0.25"]}
    whole = options(shards, small_config, tmp_path / "run", **settings, **mixed)
    resumed = replace(whole, output=str(killed(tmp_path / "run")))
    lines = run(whole, copy_at=3)  # saved at 2
    refused("data was", run, replace(resumed, mix_shards=[f"{other}=0.3"]))
    assert run(resumed) == [line for line in lines if line[0] > 2]
    assert weights(resumed.output) == weights(whole.output)
    scales = {line[2].get("loss_scale") for line in lines if line[1] == "train"}
    assert scales == {2.0**15, 2.0**16, 2.0**17}
    other = replace(whole, mix_shards=[f"{dynamic_shards}=0.25"])
    refused("has masking dynamic.* static", run, other)


@pytest.mark.slow
def test_late_batches_are_larger_and_read_on(dynamic_shards, small_config, tmp_path):
    """Steps 1 to 6 take 4 examples, steps 7 to 10 take 12: no example is missed or seen twice."""
    late = {"batch_size": 4, "late_batch_size": 12, "late_share": 0.3, "steps": 10}
    late |= {"gradient_accumulation_steps": 2, "save_every": 8}
    made = options(dynamic_shards, small_config, tmp_path / "run", **late)
    data = PretrainingData(made)
    steps = [phase.until for phase in data.phases]
    assert steps == [6, 10]  # three steps of ten would leave the reader within a batch of 12
    assert [phase.gradient_accumulation_steps for phase in data.phases] == [2, 6]
    assert data.summary.endswith(", 10 steps of 4, the last 4 of 12")
    strategy = tf.distribute.get_strategy()
    early, large = (
        list(data.train_batches(phase, strategy, 0).take(count).as_numpy_iterator())
        for phase, count in zip(data.phases, (6, 4), strict=True)
    )
    stream = pretraining_batches(dynamic_shards, 4, seed=made.seed).take(18)
    for name in ("segment_ids", "padding_mask"):  # masks are drawn by batch
        rows = [inputs[name] for inputs, *_ in early + large]
        whole = [inputs[name] for inputs, *_ in stream.as_numpy_iterator()]
        np.testing.assert_array_equal(np.concatenate(rows), np.concatenate(whole))

    lines = run(made, copy_at=9)  # saved two steps into the large batches
    assert [step for step, kind, _ in lines if kind == "held_out"] == [4, 6, 8, 10]
    after = run(replace(made, output=str(killed(made.output))))
    assert weights(killed(made.output)) == weights(made.output)
    assert after == [line for line in lines if line[0] > 8]
    for other, cause in (
        ({"late_batch_size": None, "late_share": None}, "late_batch_size was 12, is now None"),
        ({"masked_lm_prob": 0.2}, "masked_lm_prob was None, is now 0.2"),
    ):
        refused(cause, run, replace(made, **other))


_SERVER = """
import time
import tensorflow as tf

service = tf.data.experimental.service
dispatcher = service.DispatchServer()
address = dispatcher.target.removeprefix("grpc://")
worker = service.WorkerServer(service.WorkerConfig(dispatcher_address=address))
print(dispatcher.target, flush=True)
time.sleep(1e6)
"""


@pytest.mark.slow
def test_a_data_service_changes_nothing(undisturbed, rows, small_config, tmp_path):
    with pytest.raises(InputError, match=r"nowhere:1: no tf\.data service answers"):
        run(options(rows, small_config, tmp_path, data_service="grpc://nowhere:1"))
    process = start_code(_SERVER)
    try:
        address = process.first_line()
        run(options(rows, small_config, tmp_path, data_service=address, **SETTINGS))
    finally:
        process.kill()
    assert weights(tmp_path) == weights(undisturbed[0])


@pytest.mark.slow
def test_a_student_learns_a_teachers_guesses(dynamic_shards, small_config, tmp_path):
    """On the same batches with weight 1 it comes closer to the teacher than it was."""
    arguments = {"objective": "mlm", "dropout": 0.0}
    made = functools.partial(options, dynamic_shards, small_config, **arguments)
    teacher = tmp_path / "teacher"
    run_pretraining(made(teacher, steps=4, learning_rate=1e-2, initializer_range=0.2))
    by = {"teacher": str(teacher / "last"), "teacher_weight": 1.0}
    (batch, *_) = next(iter(pretraining_batches(open_shards(dynamic_shards, "train"), 8)))
    outputs = {}
    losses = {}  # of the first step
    for name, given in (("taught", by), ("alone", {})):
        lines = run(made(tmp_path / name, evaluate_every=40, steps=40, **given))
        losses[name] = lines[0][2]["loss"]
        outputs[name] = load_model(tmp_path / name / "last")(batch)["mlm_logits"]
    known = tf.nn.softmax(load_model(teacher / "last")(batch)["mlm_logits"])
    divergence = {
        name: np.mean(tf.reduce_sum(known * (tf.math.log(known) - tf.nn.log_softmax(x)), -1))
        for name, x in outputs.items()
    }
    assert divergence["taught"] < divergence["alone"] / 2
    # Layers are compared, too: tests/runs/test_teacher.py has students that learn them.
    lines = run(made(tmp_path / "layers", steps=1, teacher_layers="hidden_states", **by))
    assert lines[0][2]["loss"] > 1.01 * losses["taught"]
    pieces = (teacher / "last" / "vocab.txt").read_text().split("\n")
    pieces[-2] = "another"
    (teacher / "last" / "vocab.txt").write_text("\n".join(pieces))
    with pytest.raises(InputError, match="last has another vocabulary than the student"):
        run_pretraining(made(tmp_path / "none", teacher=str(teacher / "last")))
