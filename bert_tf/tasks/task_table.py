"""All tasks in one table, and how `--task` finds others. Importing it imports no TensorFlow.

A new data set is an entry of `_TABLE`. A new kind is a file in `kinds`, a subclass of
`kinds.kind.Kind`, which is named here (docs/adding-a-task.md).
"""

import dataclasses
import functools
import hashlib
import importlib.util
import sys
from collections import UserDict
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from bert_tf.errors import InputError, nearest
from bert_tf.tasks.scoring.conlleval import entity_score_names
from bert_tf.tasks.scoring.metrics import (
    MASKED_WORDS,
    accuracy,
    f1,
    matthews_correlation,
    pearson,
    spearman,
)
from bert_tf.tasks.scoring.squad_scores import SQUAD_1, SQUAD_2
from bert_tf.tasks.task import KindName, Task

Classification = KindName("classification", "Classification", reads="ClassReader")
MultiLabel = KindName("multi_label", "MultiLabel", reads="LabelSetReader")
Regression = KindName("regression", "Regression", reads="NumberReader")
Choice = KindName("choice", "Choice", reads="ChoiceReader")
Span = KindName("span", "Span", reads="QuestionReader")
Tagging = KindName("tagging", "Tagging", reads="EntityReader")
Tags = KindName("tagging", "Tags", reads="TagReader")
MaskedLanguageModel = KindName("masked_language_model", "MaskedLanguageModel", is_trained=False)
SentenceEmbedding = KindName("sentence_embedding", "SentenceEmbedding", reads="PairReader")
Embedding = KindName("sentence_embedding", "Embedding", is_trained=False)

# Names of GLUE's published files in their folders.
_GLUE = {"train": ("train.tsv",), "validation": ("dev.tsv",), "test": ("test.tsv",)}
_SQUAD_1, _SQUAD_2 = (
    {
        split: (f"{name}-{version}.json", f"{name}-{version}.json.gz")
        for split, name in (("train", "train"), ("validation", "dev"))
    }
    for version in ("v1.1", "v2.0")
)
_SENTENCES = {"text": "sentence1", "pair": "sentence2"}
_ENTAILED = ("entailment", "not_entailment")
_NLI = ("contradiction", "entailment", "neutral")
_CONLL = ("O", *(f"{prefix}-{type_}" for type_ in ("PER", "ORG", "LOC", "MISC") for prefix in "BI"))
_MINILM = "MiniLM"  # all-MiniLM-L6-v2
_MNLI_FILES = {
    "train": ("train.tsv",),
    "validation": ("dev_matched.tsv",),
    "validation_matched": ("dev_matched.tsv",),
    "validation_mismatched": ("dev_mismatched.tsv",),
    "test": ("test_matched.tsv",),
    "test_matched": ("test_matched.tsv",),
    "test_mismatched": ("test_mismatched.tsv",),
    "ax": ("diagnostic.tsv",),
}
_CONLL_2003 = Task(
    name="conll2003",
    kind=Tagging(),
    label="labels",
    labels=_CONLL,
    scores=entity_score_names(_CONLL),
    files={
        "train": ("eng.train", "train.txt", "train.txt.gz"),
        "validation": ("eng.testa", "valid.txt", "dev.txt", "dev.txt.gz"),
        "test": ("eng.testb", "test.txt", "test.txt.gz"),
    },
    tfds={"text": "tokens", "labels": "ner", "validation": "dev"},
    paper={"base": 92.4, "large": 92.8},
    reached={_MINILM: 89.8},
)

_SQUAD = Task(
    name="squad",
    kind=Span(),
    text="question",
    pair="context",
    label="answers",
    scores=SQUAD_1,
    files=_SQUAD_1,
    max_length=384,
    paper={"base": 88.5, "large": 90.9},
    paper_split="dev",
)


def _glue(name: str, submission: str, **settings: Any) -> Task:
    """A task of GLUE, with what most of them share."""
    shared = {
        "kind": Classification(),
        "labels": ("0", "1"),
        "scores": (accuracy,),
        "files": _GLUE,
        "submissions": {"test": submission},
    }
    return Task(name=name, **{**shared, **settings})


# The paper's numbers are GLUE test scores (table 1): F1 for MRPC and QQP, Spearman for STS-B,
# Matthews for CoLA, matched accuracy for MNLI; for SQuAD (F1) and SWAG (accuracy) dev scores.
_TABLE = (
    Task(name="classification", kind=Classification(), scores=(accuracy, f1, matthews_correlation)),
    Task(
        name="multi_label",
        kind=MultiLabel(),
        scores=("average_precision", "f1_micro", "f1_macro", "exact_match"),
    ),
    Task(name="regression", kind=Regression(), scores=(pearson, spearman)),
    _glue(
        "cola",
        "CoLA.tsv",
        text="3",
        label="1",
        scores=(matthews_correlation, accuracy),
        header=False,
        test_columns={"3": "sentence"},
        tfds={"3": "sentence", "1": "label"},
        label_aliases={"unacceptable": "0", "acceptable": "1"},
        paper={"base": 52.1, "large": 60.5},
        reached={_MINILM: 28.0},
    ),
    _glue(
        "sst2",
        "SST-2.tsv",
        text="sentence",
        label_aliases={"negative": "0", "positive": "1"},
        paper={"base": 93.5, "large": 94.9},
        reached={_MINILM: 88.0},
    ),
    _glue(
        "mrpc",
        "MRPC.tsv",
        text="#1 String",
        pair="#2 String",
        label="Quality",
        scores=(f1, accuracy),
        format="tsv",
        files={
            "train": ("train.tsv", "msr_paraphrase_train.txt"),
            "validation": ("dev.tsv",),
            "test": ("test.tsv", "msr_paraphrase_test.txt"),
        },
        tfds={"#1 String": "sentence1", "#2 String": "sentence2", "Quality": "label"},
        label_aliases={"not_equivalent": "0", "equivalent": "1"},
        paper={"base": 88.9, "large": 89.3},
        reached={_MINILM: 83.7},
    ),
    _glue(
        "qqp",
        "QQP.tsv",
        text="question1",
        pair="question2",
        label="is_duplicate",
        scores=(f1, accuracy),
        skip_broken=True,
        tfds={"is_duplicate": "label"},
        label_aliases={"not_duplicate": "0", "duplicate": "1"},
        paper={"base": 71.2, "large": 72.1},
    ),
    _glue(
        "mnli",
        "MNLI-m.tsv",
        **_SENTENCES,
        label="gold_label",
        labels=_NLI,
        files=_MNLI_FILES,
        tfds={
            "sentence1": "premise",
            "sentence2": "hypothesis",
            "gold_label": "label",
            "validation": "validation_matched",
            "test": "test_matched",
            "ax": "test",
        },
        submissions={
            "test": "MNLI-m.tsv",
            "test_matched": "MNLI-m.tsv",
            "test_mismatched": "MNLI-mm.tsv",
            "ax": "AX.tsv",
        },
        paper={"base": 84.6, "large": 86.7},
    ),
    _glue(
        "qnli",
        "QNLI.tsv",
        text="question",
        pair="sentence",
        labels=_ENTAILED,
        paper={"base": 90.5, "large": 92.7},
    ),
    _glue(
        "rte",
        "RTE.tsv",
        **_SENTENCES,
        labels=_ENTAILED,
        paper={"base": 66.4, "large": 70.1},
        reached={_MINILM: 57.0},
    ),
    _glue(
        "wnli", "WNLI.tsv", **_SENTENCES, label_aliases={"not_entailment": "0", "entailment": "1"}
    ),
    _glue(
        "stsb",
        "STS-B.tsv",
        **_SENTENCES,
        kind=Regression(lowest=0, highest=5),
        label="score",
        labels=(),
        scores=(spearman, pearson),
        tfds={"score": "label"},
        paper={"base": 85.8, "large": 86.5},
        reached={_MINILM: 88.5},
    ),
    _SQUAD,
    dataclasses.replace(
        _SQUAD,
        name="squad2",
        kind=Span(unanswerable=True),
        scores=SQUAD_2,
        files=_SQUAD_2,
        epochs=2,
        batch_size=48,
        paper={"large": 81.9},
    ),
    Task(name="choice", kind=Choice(), text="context", pair="choices*", scores=(accuracy,)),
    Task(
        name="swag",
        kind=Choice(opening="sent2"),
        text="sent1",
        pair="ending*",
        scores=(accuracy,),
        files={"train": ("train.csv",), "validation": ("val.csv",), "test": ("test.csv",)},
        batch_size=16,
        learning_rate=2e-5,
        paper={"base": 81.6, "large": 86.6},
        paper_split="dev",
    ),
    Task(name="tagging", kind=Tagging(), label="labels", scores=entity_score_names(())),
    _CONLL_2003,
    dataclasses.replace(
        _CONLL_2003, name="conll2003_documents", kind=Tagging(documents=True), reached={}
    ),
    Task(name="tags", kind=Tags(), scores=("accuracy", "f1")),
    Task(name="masked_words", kind=MaskedLanguageModel(), scores=MASKED_WORDS, max_length=512),
    Task(
        name="embedding",
        kind=SentenceEmbedding(),
        pair="text_pair",
        batch_size=64,
        epochs=1,
        scores=("mrr", "recall_at_1", "recall_at_10"),
    ),
    Task(name="vectors", kind=Embedding(), max_length=512),
)
_DECLARED = {task.name: task for task in _TABLE}

_ALSO = {  # task -> what others call it
    "classification": ("sentiment", "sentiment_analysis", "text_classification"),
    "multi_label": ("multi_label_classification",),
    "regression": ("similarity",),
    "tagging": ("ner", "token_classification"),
    "tags": ("pos", "part_of_speech"),
    "squad": ("qa", "question_answering"),
    "mnli": ("nli",),
    "mrpc": ("paraphrase",),
    "choice": ("multiple_choice",),
    "masked_words": ("mlm", "fill_mask"),
    "vectors": ("features",),
    "embedding": ("sentence_similarity", "sentence_embedding", "search"),
}


@functools.cache
def _loaded(name: str) -> Task:
    task = _DECLARED[name]
    return dataclasses.replace(task, kind=task.kind.load())


class _Tasks(UserDict[str, Task]):
    """The tasks by name. Looking one up loads its kind; in `data` kinds are names."""

    def __getitem__(self, name: str) -> Task:
        return _loaded(name)


TASKS = _Tasks(_DECLARED)
_NAMED: set[str] = set()  # Python files that the user has named in this process


def check_name(name: str) -> None:
    """Refuses what is neither in the table, nor an entry point, nor a Python file."""
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise InputError(f"{name}: no such file: name one that defines TASK with --task")
    elif name not in TASKS and not entry_points(group="bert_tf.tasks", name=name):
        known = [*TASKS, *(point.name for point in entry_points(group="bert_tf.tasks"))]
        hint = f"give one of {', '.join(known)}"
        task_of = {other: task for task, others in _ALSO.items() for other in others}
        if near := nearest(name.lower().replace("-", "_"), [*known, *task_of]):
            hint = f"did you mean {task_of.get(near, near)}? bert-tf tasks lists all"
        raise InputError(f"there is no task {name!r}: {hint}")


def find_task(name: str, *, brought_by: str | Path | None = None) -> Task:
    """Finds a task by its name, the path of a file that defines TASK, or an entry point's name.

    `brought_by` is the model whose task.json has the name: a file runs only if the user has named
    it in this process.
    """
    if name in TASKS:
        return TASKS[name]
    check_name(name)
    if name.endswith(".py"):
        resolved = str(Path(name).resolve())
        if brought_by is None:
            _NAMED.add(resolved)
        elif resolved not in _NAMED:
            raise InputError(
                f"{brought_by} asks for the code in {name}, which runs only if you name it: read "
                "it, then give it by --task, or in Python by bert_tf.BertPreprocessor(task=...)"
            )
        name = resolved
        try:
            task = _module(Path(name)).TASK
        except Exception as error:  # the user's code
            raise InputError(
                f"{name}: {type(error).__name__}: {error}; define TASK in it, or name another file "
                "with --task"
            ) from error
    else:
        task = entry_points(group="bert_tf.tasks")[name].load()
    if not isinstance(task, Task):
        raise InputError(f"{name}: TASK is a {type(task).__name__}; make it a Task")
    # Stored in task.json, so that the model directory finds the task again.
    return dataclasses.replace(task, name=name)


def _module(path: Path) -> ModuleType:
    """Runs a Python file, unless this process has run the same content before."""
    name = f"{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # where a dataclass looks its annotations up
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def with_options(task: Task, options: Mapping[str, Any]) -> Task:
    """The task with a user's options; those for tasks of another kind are refused."""
    chosen = task.with_settings(options)
    kinds = [other.kind for other in TASKS.values()]
    of_kinds = {name for kind in kinds for name in kind.settings()}
    of_kinds |= {field.name for kind in kinds for field in dataclasses.fields(kind.options)}
    for name in sorted(of_kinds - chosen.kind.settings().keys()):
        if options.get(name) is not None:
            raise InputError(f"--{name} is not for the task {task.name}: leave it out")
    return chosen
