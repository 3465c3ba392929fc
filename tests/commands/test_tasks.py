from dataclasses import replace

from cases import for_each

from bert_tf.commands.tasks import describe, overview
from bert_tf.tasks.task_table import TASKS


def test_the_table_has_every_task(call):
    out, err = call("tasks")
    rows = {line.split()[0]: " ".join(line.split()) for line in out.splitlines() if line.split()}
    assert rows.keys() > TASKS.keys()
    assert rows["squad2"] == "squad2 span best_f1, best_exact 384 2 48 5e-05 - 81.9 dev"
    assert rows["swag"].startswith("swag choice accuracy 128 3 16 2e-05 81.6 86.6 dev")
    assert rows["masked_words"].endswith("accuracy, pseudo_perplexity 512")  # trains nothing
    assert "bert-tf tasks NAME" in err
    assert overview(TASKS.data.values()) == overview(TASKS.values())
    assert [*map(describe, TASKS.data.values())] == [*map(describe, TASKS.values())]
    for name, expected in (("swag", "81.6 (base), 86.6 (large), dev set"), ("rte", ", test set")):
        assert dict(describe(TASKS[name]))["paper"].endswith(expected)
    task = replace(TASKS["rte"], reached={"some weights": 66.0})
    assert overview([task])[1][-1] == "66.0 (some weights)"


@for_each("name", *TASKS)
def test_a_task_in_full(name, call):
    out, _ = call("tasks", name)
    task = TASKS[name]
    assert ("bert-tf finetune" in out) == task.kind.is_trained
    for text in (*task.labels, *sum(task.files.values(), ()), task.text, f"--task {name}"):
        assert text in out


def test_a_task_of_ones_own_and_one_that_is_not_there(tmp_path, call):
    (tmp_path / "mine.py").write_text(
        "from bert_tf.tasks.kinds.regression import Regression\n"
        "from bert_tf.tasks.task import Task\n"
        "TASK = Task(name='mine', kind=Regression(), max_length=77)\n"
    )
    out, _ = call("tasks", tmp_path / "mine.py")
    assert "--max_length 77" in out and "--output runs/mine" in out
    assert "did you mean mnli?" in call.refused("tasks mnl")
