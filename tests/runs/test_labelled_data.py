import json
import re
from pathlib import Path

import pytest
from cases import for_each, refused
from command_line import words
from tiny import tiny_config

from bert_tf import BertClassifier, BertEncoder, BertTokenizer, load_model, save_model
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.commands.search import Options as SearchOptions
from bert_tf.commands.settings_search import data_content
from bert_tf.models.task_models import BertRegressor
from bert_tf.tasks.task_table import find_task
from bert_tf.text.answerer import Answerer
from bert_tf.text.opening import load_answerer

ROOT = Path(__file__).parents[2]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "sea", "ship", "farm", "cow"]
CONFIG = tiny_config(len(PIECES), initializer_range=0.5)


def saved(model, folder) -> Path:
    save_model(model, folder, tokenizer=BertTokenizer(PIECES))
    return folder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    return saved(BertEncoder(CONFIG, seed=0), tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="module")
def hugging_face(tmp_path_factory) -> Path:
    """A classifier of pairs, as Hugging Face has it: no task.json."""
    model = BertClassifier(CONFIG, labels=["LABEL_0", "LABEL_1"], seed=0)
    return saved(model, tmp_path_factory.mktemp("classifier"))


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_classifier_of_hugging_face_answers_and_is_exported(hugging_face, tmp_path, call):
    data = write(tmp_path / "d.tsv", "one\ttwo\tis", "sea\tship\tno", "cow\tfarm\tyes")
    columns = words("--text_column one --pair_column two")
    names = ["--label_map", "LABEL_0=no", "LABEL_1=yes"]
    out, err = call("evaluate --label_column is", *columns, *names, model=hugging_face, data=data)
    assert json.loads(out)["examples"] == 2
    assert "f1 is the F1 score of the label 'yes'" in err
    unknown = write(tmp_path / "one.tsv", "one\ttwo\tis", "sea\tship\tno")
    line = call.refused("evaluate --label_column is", *columns, model=hugging_face, data=unknown)
    assert "one.tsv, line 2: the label 'no'" in line and "LABEL_0, LABEL_1" in line
    expected, _ = call("predict", *columns, *names, model=hugging_face, input=data)
    call("export --name m --pair_column two", *names, model=hugging_face, output=tmp_path)
    served, _ = call("predict", *columns, model=tmp_path / "m", input=data)
    for one, other in zip(expected.splitlines(), served.splitlines(), strict=True):
        one, other = json.loads(one), json.loads(other)
        assert set(one["probabilities"]) == {"no", "yes"}
        assert all(one[key] == other[key] for key in ("text", "pair", "label"))
    line = call.refused("export --name m --max_length 17", model=hugging_face, output=tmp_path)
    assert "17 tokens" in line and "16 positions" in line
    line = call.refused("evaluate --label_map x=y", model=hugging_face, data=data)
    assert "--label_map x=y" in line


def test_a_regression_model_of_hugging_face_answers_with_a_score(tmp_path, call):
    model = saved(BertRegressor(CONFIG, seed=0), tmp_path / "model")
    out, _ = call("predict --text sea cow", model=model)
    scores = [json.loads(line)["score"] for line in out.splitlines()]
    assert scores[0] != scores[1]
    constant = write(tmp_path / "d.tsv", "text\tlabel", "sea\t1.5", "sea\t2.5")
    out, err = call("evaluate", model=model, data=constant)
    assert json.loads(out) == {"examples": 2, "pearson": None, "spearman": None}
    assert "pearson, spearman: undefined for constant values" in err


@pytest.mark.slow
def test_a_model_and_its_export_read_what_it_was_trained_on(encoder, tmp_path, call, monkeypatch):
    rows = [f"id{i}\t{'no' if i % 2 else 'yes'}\t{'sea' if i % 2 else 'cow'}" for i in range(12)]
    data = write(tmp_path / "rows.txt", *rows)
    line = "finetune --format tsv --no_header --text_column 2 --label_column 1 --epochs 1"
    line += " --max_length 8 --validation_share 0.34 --best_by matthews_correlation"
    call(line, model=encoder, train=data, output=tmp_path / "run")
    best = tmp_path / "run" / "best"
    out, _ = call("predict", model=best, input=data)
    expected = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in expected] == ["cow", "sea"] * 6
    with data.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert call("predict --input -", model=best)[0] == out
    call("export --name m", model=best, output=tmp_path)
    found = map(json.loads, call("predict", model=tmp_path / "m", input=data)[0].splitlines())
    for row, other in zip(expected, found, strict=True):
        assert (row["text"], row["label"]) == (other["text"], other["label"])


@pytest.mark.slow
def test_predict_keeps_the_columns_of_its_input(hugging_face, tmp_path, call, monkeypatch):
    data = write(tmp_path / "d.csv", "id,one,label", '7,"sea, ship",no', "8,cow,yes")
    line, model = "predict --text_column one", {"model": hugging_face}
    call(line, **model, input=data, output=tmp_path / "answers.csv")
    header, first, second = (tmp_path / "answers.csv").read_text().splitlines()
    assert header.startswith("id,one,input_label,label,probability,truncated,probabilities_")
    assert first.startswith('7,"sea, ship",no,LABEL_') and second.startswith("8,cow,yes,LABEL_")
    out, _ = call(line, **model, input=data)
    with data.open() as file:
        monkeypatch.setattr("sys.stdin", file)
        assert call(f"{line} --input - --format csv", **model)[0] == out
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["text"] for row in rows] == ["sea, ship", "cow"]
    assert [(row["id"], row["input_label"]) for row in rows] == [("7", "no"), ("8", "yes")]
    assert "one" not in rows[0]
    lines = write(tmp_path / "d.txt", "sea ship", "cow")
    out, _ = call("predict", **model, input=lines)
    assert [json.loads(line)["text"] for line in out.splitlines()] == ["sea ship", "cow"]


def test_columns_go_by_their_names_and_outputs_are_no_inputs(hugging_face, tmp_path, call):
    """A column "text" does not stand in place of the review that is answered."""
    row = {"review": "sea", "text": "cow", "same": "sea"}
    data = write(tmp_path / "d.jsonl", json.dumps(row))
    given = {"model": hugging_face, "input": data}
    out, _ = call("predict --text_column review", **given)
    expected = {"text": "sea", "input_text": "cow", "same": "sea"}
    assert dict(list(json.loads(out).items())[:3]) == expected
    call.refused("predict", **given, output=data)
    link = tmp_path / "link.jsonl"
    link.symlink_to(tmp_path / "target.jsonl")
    call("predict", **given, output=link)
    assert link.is_symlink() and (tmp_path / "target.jsonl").read_text()
    call.refused("evaluate", model=hugging_face, data=data, output=hugging_face)


@for_each(
    "rows more message",
    (["sea\ta", "cow\t ", "ship\tb"], [], r"train\.tsv, line 3: the label is blank"),
    (["sea\ta", "cow\tb"], ["--best_by", "f2"], r"--best_by f2 .* accuracy, f1, .*, loss"),
    (["sea\t1_0", "cow\t1"], ["--task", "regression"], r"line 2: the label '1_0' is not a num"),
    (["sea\ta"], [], "one label only, 'a'"),
    (["sea\ta", "cow\tb"], ["--label_smoothing", "1"], "--label_smoothing is 1.0: give"),
    (["sea\ta", "cow\tb"], ["--doc_stride", "8"], "--doc_stride is not for the task class"),
    (["sea\ta", "cow\tb"], ["--validation", "dev.tsv"], r"dev\.tsv, line 3: the label 'c' is"),
)
def test_examples_that_cannot_be_used(encoder, tmp_path, monkeypatch, call, rows, more, message):
    monkeypatch.chdir(tmp_path)
    train = write(tmp_path / "train.tsv", "text\tlabel", *rows)
    write(tmp_path / "dev.tsv", "text\tlabel", "sea\ta", "cow\tc")
    files = {"model": encoder, "train": train, "output": tmp_path / "run"}
    line = call.refused("finetune --max_length 8", *more, **files)
    assert re.search(message, line), line
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_data_set_by_name_up_to_the_official_file(encoder, tmp_path, call, tensorflow_datasets):
    texts = ["sea ship", "cow", "farm cow", "sea"]
    records = [{"sentence": t, "label": i % 2, "idx": i} for i, t in enumerate(texts)][::-1]
    run, best = tmp_path / "run", tmp_path / "run" / "best"
    name = "tfds:glue/sst2"
    with tensorflow_datasets(records) as asked:
        line = "finetune --task sst2 --max_steps 1 --max_length 8"
        call(line, data=name, model=encoder, output=run)
        out, _ = call("evaluate", data=name, model=best)
        files = {"output": tmp_path / "answers", "submission": tmp_path / "files"}
        call("predict", model=best, input=name, **files)
    assert asked == ["train", "validation", "test", "validation", "test"]
    assert json.loads(out) == json.loads((best / "metrics.json").read_text())
    answers = (tmp_path / "answers").read_text().splitlines()
    labels = [json.loads(line)["label"] for line in answers]
    rows = (tmp_path / "files" / "SST-2.tsv").read_text().splitlines()
    assert rows == ["index\tprediction", *(f"{i}\t{label}" for i, label in enumerate(labels))]


@pytest.mark.slow
def test_a_dry_run_says_what_is_odd_answers_the_longest_texts_and_writes_nothing(
    encoder, tmp_path, call, monkeypatch
):
    answered, answers = [], Answerer.answers

    def watched(self, examples, size):
        answered.append((examples.columns["text"], size))
        return answers(self, examples, size)

    monkeypatch.setattr(Answerer, "answers", watched)
    train = write(tmp_path / "train.tsv", "text\tlabel", *["sea\t1.5", "\t2.25"] * 4)
    texts = [" ".join(["sea"] * (1 + number)) for number in range(9)]
    dev = write(tmp_path / "dev.tsv", "text\tlabel", *[f"{text}\t1.5" for text in texts])
    files = {"model": encoder, "train": train, "output": tmp_path / "run", "validation": dev}
    line = "finetune --max_length 8 --batch_size 4 --gradient_accumulation_steps 2 --dry_run"
    _, err = call(line, **files)
    said = " ".join(err.split())
    assert answered == [(texts[-4:], 2)]  # micro-batches, of which two are computed at once
    assert "CPU, float32: 8 training and 9 validation examples, 2 labels (1.5 4, 2.25 4)" in said
    assert "always answering '1.5' has an accuracy of 100.0% on the validation examples" in said
    assert "dev.tsv: no example has the label 2.25" in said
    assert "f1 is the F1 score of the label '2.25'" in said
    assert "labels such as 1.5 are numbers with decimals; for regression give --task" in said
    assert "4 examples have a blank text, the first in line 3" in said
    assert "parameters" in said and "GiB of memory" in said
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_seeds_are_summed_up(encoder, tmp_path, call):
    train = write(tmp_path / "train.tsv", "text\tlabel", *["sea\ta", "cow\tb"] * 8)
    run = tmp_path / "run"
    line = "finetune --epochs 1 --max_length 8 --seeds 2 --seed 5 --class_weights balanced"
    line += " --label_smoothing 0.1 --max_steps 2 --batch_size 4"
    _, err = call(line, model=encoder, train=train, output=run)
    summary = json.loads((run / "seeds.json").read_text())
    files = [run / f"seed-{seed}" / "best" / "metrics.json" for seed in (5, 6)]
    each = [json.loads(file.read_text())["accuracy"] for file in files]
    assert summary["accuracy"]["mean"] == sum(each) / 2
    assert summary["accuracy"]["best"] == max(each)
    assert "accuracy: mean" in err
    assert load_answerer(run / "best").labels == ["a", "b"]


PAGE = (ROOT / "docs" / "adding-a-task.md").read_text(encoding="utf-8")
DOCUMENTED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_documented_kind_and_task_can_be_fine_tuned(encoder, tmp_path, call, monkeypatch):
    task = write(tmp_path / "stars.py", DOCUMENTED[1])
    data = write(tmp_path / "d.tsv", "text\tstars", *["sea ship\t5", "farm cow\t1", "sea\t4"] * 4)
    files = {"model": encoder, "train": data, "validation": data, "output": tmp_path / "run"}
    line = "finetune --epochs 2 --learning_rate 0.01 --batch_size 4 --max_length 8 --highest 6"
    call(line, task=task, **files)
    best = tmp_path / "run" / "best"
    assert json.loads((best / "task.json").read_text())["highest"] == 6
    assert "highest: 6.0\n" in (tmp_path / "run" / "config.yaml").read_text()
    assert json.loads((best / "config.json").read_text())["architectures"] == ["Rater"]
    scores = json.loads((best / "metrics.json").read_text())
    assert list(scores) == ["examples", "spearman", "pearson"]
    out, _ = call("predict", model=best, text=["sea ship", "farm cow"])
    stars = [json.loads(line)["stars"] for line in out.splitlines()]
    assert len(stars) == 2 and 1 < min(stars) <= max(stars) < 5
    refused("holds a Rater, which cannot be used as it is", load_model, best)
    # Trained further, it is of the same task.
    model = load_answerer(best)
    assert type(model.model).__name__ == "Rater"
    options = FinetuningOptions(model=str(best), train=str(data), output="run")
    assert options.task_to_train().kind == model.task.kind
    # Its option is known from the model, too.
    out, _ = call("predict --highest 1000000.0", model=best, text="sea ship")
    assert json.loads(out)["stars"] > 100

    # And the page's first example, a task.
    write(tmp_path / "reviews.py", DOCUMENTED[0])
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        write(folder / name, "review\tverdict", *["sea\tgood", "cow\tbad"] * 4)
    monkeypatch.chdir(tmp_path)
    line = "finetune --task reviews.py --output reviews --epochs 1 --max_length 8"
    _, err = call(line, model=encoder, train=folder)
    assert "f1 is the F1 score of the label 'good'" in err
    monkeypatch.chdir("/")
    task = tmp_path / "reviews.py"
    out, _ = call("evaluate", model=tmp_path / "reviews/best", data=folder / "dev.tsv", task=task)
    assert list(json.loads(out)) == ["examples", "f1", "accuracy"]


@for_each("place", "{0}/code.py", "code.py", "/proc/self/cwd/code.py")
def test_code_that_a_model_names_is_not_run(place, hugging_face, tmp_path, call, monkeypatch):
    model, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    load_answerer(hugging_face).save(model)
    elsewhere.mkdir()
    write(elsewhere / "code.py", "raise SystemExit(7)")
    task = {"task": place.format(elsewhere)}
    (model / "task.json").write_text(json.dumps(task))
    monkeypatch.chdir(elsewhere)
    line = call.refused("predict --text sea", model=model)
    assert "code.py, which runs only if you name it" in line and "--task" in line
    refused("runs only if you name it", find_task, task["task"], brought_by="the Keras file")


@pytest.mark.slow
def test_a_model_is_trained_further_for_its_own_task(tmp_path, call):
    model = saved(BertRegressor(CONFIG, seed=0), tmp_path / "similarity")
    columns = {"text_column": "a", "pair_column": "b", "label_column": "y", "max_length": 9}
    (model / "task.json").write_text(json.dumps({"task": "stsb", **columns}))
    data = write(tmp_path / "more.tsv", "a\tb\ty", *["sea\tship\t4.5", "sea\tcow\t0.5"] * 6)
    line = "finetune --epochs 1 --batch_size 4 --dry_run"
    _, err = call(line, model=model, train=data, output=tmp_path / "run")
    assert "labels" not in err  # a classifier would have 4.5 and 0.5
    # The search hashes the examples of the same task.
    assert data_content(SearchOptions(model=str(model), data=str(data), output="run"))
