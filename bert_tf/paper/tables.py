"""All tables of the paper, arXiv 1810.04805v2, as data: systems, scores, published numbers.

The settings of the runs come in two scales: the paper's, and small enough for a few cores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Values = Mapping[str, Any]

PERPLEXITY = "masked-LM perplexity"


@dataclass(frozen=True, kw_only=True)
class Scale:
    name: str  # name on the command line
    vocabulary_size: int  # maximum number of pieces
    do_lower_case: bool  # whether the vocabulary is uncased
    lengths: tuple[int, ...]  # tokens per instance: short, and then long ones if there are two
    shards: Mapping[str, Any]  # options of `PretrainingDataOptions`
    pretraining: Mapping[str, Any]  # options of `PretrainingOptions` of every system
    # options of `SearchOptions` on every task; every learning rate is tried with one seed
    finetuning: Mapping[str, Any]
    features: Mapping[str, Any]  # the same, on a frozen encoder
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the same, by task
    seeds: int  # runs of every fine-tuning
    checkpoint_every: int  # steps between two models of a pre-training that are kept
    large: str  # size of the larger model, beside that of `pretraining`
    sizes: Mapping[str, Mapping[str, Any]]  # models to compare: name -> `PretrainingOptions`
    layered: str  # size of the model whose layers are compared
    lstm_size: str  # size of the LSTM language models in ELMo's manner
    all_layers: str  # layers of the feature-based approach
    training_steps: tuple[int, ...]  # steps at which pre-training is looked at


@dataclass(frozen=True, kw_only=True)
class System:
    """A row: a model and how it is fine-tuned. Its options are added to the scale's."""

    name: str
    pretraining: Values = field(default_factory=dict)  # options of `PretrainingOptions`
    shards: Values = field(default_factory=dict)  # options of `PretrainingDataOptions`
    finetuning: Values = field(default_factory=dict)  # options of `SearchOptions`
    step: int | None = None  # of pre-training, to fine-tune from; by default the best model's
    line: str = ""  # line of a curve that the row is a point of


@dataclass(frozen=True)
class Column:
    """A score of every system."""

    title: str
    task: str  # name of the task; "" for the perplexity of held-out masked words
    score: str | None = None  # name of the score; None for the first of the task
    features: bool = False  # whether the encoder is frozen, and the scale's layers of it are read


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    name: str  # name on the command line
    title: str
    source: str  # where the paper has it
    systems: Callable[[Scale], Sequence[System]]  # the systems to run at a scale
    columns: Sequence[Column]  # the paper's scores, then those that it lacks
    # name of a system -> the paper's numbers, in the order of the columns
    numbers: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    # columns of a task that is not among `columns`: suffix of the title -> `Column.features`
    variants: Mapping[str, bool] = field(default_factory=lambda: {"": False})
    remarks: Sequence[str] = ()  # differences from the paper, a sentence each

    @property
    def published(self) -> dict[str, dict[str, float]]:
        """Name of a system -> title of a column -> the paper's number."""
        titles = [column.title for column in self.columns]
        return {
            name: {title: n for title, n in zip(titles, row, strict=False) if n is not None}
            for name, row in self.numbers.items()
        }

    def columns_of(self, tasks: Sequence[str]) -> list[Column]:
        """The columns to run: the columns of the given tasks, or new ones if the table has none."""
        columns = [column for column in self.columns if not column.task or column.task in tasks]
        if not any(column.task for column in columns):
            columns += [
                Column(title=f"{task}{suffix}", task=task, features=features)
                for task in tasks
                for suffix, features in self.variants.items()
            ]
        return columns


# A narrow model and minutes of training: no dropout, larger initial weights and a high learning
# rate, with which it soon learns more than word frequencies (see bert_tf/commands/demo.py).
SMALL = Scale(
    name="small",
    vocabulary_size=8192,
    do_lower_case=True,
    lengths=(64,),
    shards={"masking": "dynamic", "dupe_factor": 2, "held_out_share": 0.02, "seed": 1},
    pretraining={
        "size": "tiny",
        "dropout": 0.0,
        "initializer_range": 0.06,
        "batch_size": 64,
        "steps": 4000,
        "learning_rate": 2e-3,
        "precision": "auto",
        "evaluate_every": 1000,
        "evaluation_batches": 50,
        "seed": 1,
    },
    finetuning={
        "batch_size": [32],
        "learning_rate": [2e-4, 5e-4],
        "epochs": [3],
        "max_length": 64,
        "precision": "auto",
        "seed": 1,
    },
    features={"learning_rate": [1e-3], "max_steps": 300},
    tasks={
        "classification": {"epochs": [8]},
        "conll2003": {"max_steps": 600},
        "squad": {"epochs": [5], "doc_stride": 24, "max_query_length": 24},
        "squad2": {"epochs": [5], "doc_stride": 24, "max_query_length": 24},
    },
    seeds=3,
    checkpoint_every=1000,
    large="4x128x2",
    sizes={
        "2 layers, 64 wide": {"size": "2x64x1"},
        "1 layer, 128 wide": {"size": "1x128x2"},
        "2 layers, 128 wide": {"size": "tiny"},
        "4 layers, 128 wide": {"size": "4x128x2"},
        "2 layers, 256 wide": {"size": "2x256x4"},
    },
    layered="4x128x2",
    lstm_size="2x128x2",
    all_layers="-1,-2",
    training_steps=(1000, 2000, 3000, 4000),
)

# Sections 4, 5, A.2 and A.3. The warm-up of 10,000 steps is the default.
PAPER = Scale(
    name="paper",
    vocabulary_size=30_522,
    do_lower_case=True,
    lengths=(128, 512),
    shards={"masking": "dynamic", "dupe_factor": 10, "held_out_share": 0.005},
    pretraining={
        "size": "base",
        "batch_size": 256,
        "steps": 1_000_000,
        "learning_rate": 1e-4,
        "evaluate_every": 10_000,
        "evaluation_batches": 100,
        "save_every": 5000,
        "precision": "auto",
    },
    finetuning={"batch_size": [32], "epochs": [3], "precision": "auto"},
    features={"learning_rate": [1e-3]},
    tasks={
        "squad": {"learning_rate": [5e-5], "max_length": 384},
        "squad2": {"learning_rate": [5e-5], "batch_size": [48], "epochs": [2], "max_length": 384},
        "swag": {"learning_rate": [2e-5], "batch_size": [16]},
    },
    seeds=5,
    checkpoint_every=100_000,
    large="large",
    sizes={
        "3 layers, 768 wide, 12 heads": {"size": "3x768x12"},
        "6 layers, 768 wide, 3 heads": {"size": "6x768x3"},
        "6 layers, 768 wide, 12 heads": {"size": "6x768x12"},
        "12 layers, 768 wide, 12 heads": {"size": "base"},
        "12 layers, 1024 wide, 16 heads": {"size": "12x1024x16"},
        "24 layers, 1024 wide, 16 heads": {"size": "large"},
    },
    layered="base",
    lstm_size="2x512x8",
    all_layers="concat_last_four",
    training_steps=tuple(range(100_000, 1_000_001, 100_000)),
)

SCALES = {scale.name: scale for scale in (SMALL, PAPER)}

_MNLI = Column("MNLI-m (Acc)", "mnli")
_QNLI = Column("QNLI (Acc)", "qnli")
_SST2 = Column("SST-2 (Acc)", "sst2")
_RTE = Column("RTE (Acc)", "rte")
_MRPC = Column("MRPC (Acc)", "mrpc", "accuracy")
_NER = Column("NER (F1)", "conll2003", "f1")
_DEV_F1 = Column("Dev F1", "conll2003", "f1")


def _base_and_large(scale: Scale) -> list[System]:
    """Two sizes, and the first without pre-training."""
    names = ["BERT base", "BERT large"]
    if scale.name != "paper":
        names = ["BERT small scale", "BERT small scale, deeper"]
    return [
        System(name="random weights", finetuning={"from_scratch": True}),
        System(name=names[0]),
        System(name=names[1], pretraining={"size": scale.large}),
    ]


_LAYERS = {  # the paper's rows of table 7, and the `--features_only` of each
    "Embeddings": "embeddings",
    "Second-to-last hidden": "second_to_last",
    "Last hidden": "last",
    "Sum of last four hidden": "sum_last_four",
    "Concat last four hidden": "concat_last_four",
    "Weighted sum of all layers": "mix",
}


def _features(scale: Scale) -> list[System]:
    pretraining = {"size": scale.layered}
    rows = [
        System(name=name, pretraining=pretraining, finetuning={"features_only": layers})
        for name, layers in _LAYERS.items()
    ]
    lstms = {"objective": "bilm", "size": scale.lstm_size}
    elmo = System(name="ELMo", pretraining=lstms, finetuning={"features_only": "mix"})
    return [elmo, System(name="Fine-tuning", pretraining=pretraining), *rows]


def _training_steps(scale: Scale) -> list[System]:
    return [
        System(name=f"{line}, {step:,} steps", pretraining=values, step=step, line=line)
        for line, values in {"MLM": {}, "LTR": {"objective": "ltr"}}.items()
        for step in scale.training_steps
    ]


# Shares of [MASK], of the same and of a random token.
_MASKS: dict[tuple[int, int, int], list[float | None]] = {
    (80, 10, 10): [84.2, 95.4, 94.9],
    (100, 0, 0): [84.3, 94.9, 94.0],
    (80, 0, 20): [84.1, 95.2, 94.6],
    (80, 20, 0): [84.4, 95.2, 94.7],
    (0, 20, 80): [83.7, 94.8, 94.6],
    (0, 0, 100): [83.6, 94.9, 94.6],
}


def _mask_name(shares: tuple[int, int, int]) -> str:
    return "{}% [MASK], {}% same, {}% random".format(*shares)


def _masking(scale: Scale) -> list[System]:
    systems = [System(name=_mask_name((80, 10, 10)))]  # the default
    for mask, same, random in [*_MASKS][1:]:
        shares = {"mask_token_share": mask / 100, "random_token_share": random / 100}
        systems.append(System(name=_mask_name((mask, same, random)), pretraining=shares))
    return systems


def _recipe(scale: Scale) -> list[System]:
    """What `recipes/pretrain-modern.yaml` changes, one by one and together."""
    changes: dict[str, dict[str, Any]] = {
        "No NSP": {"objective": "mlm"},
        "30% masked": {"masked_lm_prob": 0.3},
        "Warm-up, stable, decay": {"schedule": "warmup_stable_decay"},
    }
    if len(scale.lengths) == 1:  # large batches late are not for runs with long sequences late
        half = scale.pretraining["batch_size"] // 2
        batches = {"batch_size": half, "late_batch_size": 3 * half, "late_share": 0.5}
        changes["Larger batches late"] = batches
    modern = {name: value for values in changes.values() for name, value in values.items()}
    sentences = {"instances": "full_sentences"}
    return [
        System(name="The paper's"),
        *(System(name=name, pretraining=values) for name, values in changes.items()),
        System(name="All, on full sentences", pretraining=modern, shards=sentences),
    ]


TABLES: dict[str, PaperTable] = {
    table.name: table
    for table in (
        PaperTable(
            name="glue",
            title="GLUE",
            source="table 1 (test scores)",
            systems=_base_and_large,
            columns=[
                _MNLI,
                Column("QQP (F1)", "qqp"),
                _QNLI,
                _SST2,
                Column("CoLA (Matthews)", "cola"),
                Column("STS-B (Spearman)", "stsb"),
                Column("MRPC (F1)", "mrpc"),
                _RTE,
            ],
            numbers={
                "Pre-OpenAI SOTA": [80.6, 66.1, 82.3, 93.2, 35.0, 81.0, 86.0, 61.7],
                "BiLSTM+ELMo+Attn": [76.4, 64.8, 79.8, 90.4, 36.0, 73.3, 84.9, 56.8],
                "OpenAI GPT": [82.1, 70.3, 87.4, 91.3, 45.4, 80.0, 82.3, 56.0],
                "BERT base": [84.6, 71.2, 90.5, 93.5, 52.1, 85.8, 88.9, 66.4],
                "BERT large": [86.7, 72.1, 92.7, 94.9, 60.5, 86.5, 89.3, 70.1],
            },
            remarks=[
                "Ours are scores of the validation examples, the best evaluation of each run. The "
                "paper's are of GLUE's test server."
            ],
        ),
        PaperTable(
            name="squad1",
            title="SQuAD 1.1",
            source="table 2 (development set)",
            systems=_base_and_large,
            columns=[Column("EM", "squad", "exact_match"), Column("F1", "squad", "f1")],
            numbers={
                "BiDAF+ELMo (single)": [None, 85.6],
                "R.M. Reader (ensemble)": [81.2, 87.9],
                "BERT base": [80.8, 88.5],
                "BERT large": [84.1, 90.9],
                "BERT large (ensemble)": [85.8, 91.8],
                "BERT large (single, TriviaQA)": [84.2, 91.1],
                "BERT large (ensemble, TriviaQA)": [86.2, 92.2],
            },
        ),
        PaperTable(
            name="squad2",
            title="SQuAD 2.0",
            source="table 3 (development set)",
            systems=_base_and_large,
            columns=[Column("EM", "squad2", "best_exact"), Column("F1", "squad2", "best_f1")],
            numbers={"Human": [86.3, 89.0], "BERT large": [78.7, 81.9]},
        ),
        PaperTable(
            name="swag",
            title="SWAG",
            source="table 4 (development set)",
            systems=_base_and_large,
            columns=[Column("Dev (Acc)", "swag")],
            numbers={
                "ESIM+GloVe": [51.9],
                "ESIM+ELMo": [59.1],
                "BERT base": [81.6],
                "BERT large": [86.6],
            },
        ),
        PaperTable(
            name="ner",
            title="CoNLL-2003 named entities",
            source="table 7 (development set)",
            systems=_base_and_large,
            columns=[_DEV_F1],
            numbers={"ELMo": [95.7], "BERT base": [96.4], "BERT large": [96.6]},
            remarks=["The paper's model is cased and reads the sentences around each."],
        ),
        PaperTable(
            name="pretraining-tasks",
            title="Effect of the pre-training tasks",
            source="table 5 (development sets)",
            systems=lambda scale: [
                System(name="BERT"),
                System(name="No NSP", pretraining={"objective": "mlm"}),
                System(name="LTR & No NSP", pretraining={"objective": "ltr"}),
                System(
                    name="+ BiLSTM", pretraining={"objective": "ltr"}, finetuning={"bilstm": True}
                ),
                System(name="LTR and RTL, concatenated", pretraining={"objective": "ltr+rtl"}),
            ],
            columns=[
                _MNLI,
                _QNLI,
                _MRPC,
                _SST2,
                Column("SQuAD (F1)", "squad", "f1"),
                _RTE,
                _NER,
            ],
            numbers={
                "BERT": [84.4, 88.4, 86.7, 92.7, 88.5],
                "No NSP": [83.9, 84.9, 86.5, 92.6, 87.9],
                "LTR & No NSP": [82.1, 84.3, 77.5, 92.1, 77.8],
                "+ BiLSTM": [82.1, 84.1, 75.7, 91.6, 84.9],
            },
        ),
        PaperTable(
            name="model-size",
            title="Effect of the model's size",
            source="table 6 (development sets)",
            systems=lambda scale: [System(name=n, pretraining=x) for n, x in scale.sizes.items()],
            columns=[Column(PERPLEXITY, ""), _MNLI, _MRPC, _SST2, _RTE, _NER],
            numbers={
                "3 layers, 768 wide, 12 heads": [5.84, 77.9, 79.8, 88.4],
                "6 layers, 768 wide, 3 heads": [5.24, 80.6, 82.2, 90.7],
                "6 layers, 768 wide, 12 heads": [4.68, 81.9, 84.8, 91.3],
                "12 layers, 768 wide, 12 heads": [3.99, 84.4, 86.7, 92.9],
                "12 layers, 1024 wide, 16 heads": [3.54, 85.7, 86.9, 93.3],
                "24 layers, 1024 wide, 16 heads": [3.23, 86.6, 87.8, 93.7],
            },
        ),
        PaperTable(
            name="features",
            title="Fine-tuning, and features from layers",
            source="table 7 (CoNLL-2003, development set)",
            systems=_features,
            columns=[_DEV_F1],
            numbers={
                "ELMo": [95.7],
                "Fine-tuning": [96.4],
                "Embeddings": [91.0],
                "Second-to-last hidden": [95.6],
                "Last hidden": [94.9],
                "Weighted sum of last four hidden": [95.9],
                "Concat last four hidden": [96.1],
                "Weighted sum of all layers": [95.5],
            },
            remarks=[
                "Our sum of the last four layers counts each the same. The weighted sum of all "
                "layers includes the embeddings. ELMo here is of LSTMs of our size, on our word "
                "pieces and text. The paper's model is cased and reads the sentences around each."
            ],
        ),
        PaperTable(
            name="training-steps",
            title="Effect of the number of training steps",
            source="figure 5 (a curve on MNLI, without numbers)",
            systems=_training_steps,
            columns=[_MNLI, _SST2, _MRPC, _NER],
        ),
        PaperTable(
            name="masking",
            title="Masking strategies",
            source="table 8 (development sets)",
            systems=_masking,
            columns=[
                Column("MNLI, fine-tuned (Acc)", "mnli"),
                Column("NER, fine-tuned (F1)", "conll2003", "f1"),
                Column("NER, feature-based (F1)", "conll2003", "f1", features=True),
                Column("SST-2, fine-tuned (Acc)", "sst2"),
            ],
            numbers={_mask_name(shares): row for shares, row in _MASKS.items()},
            variants={", fine-tuned": False, ", feature-based": True},
            remarks=[
                "Held-out words are masked as each row's pre-training masks: those that stay the "
                "same are easily guessed."
            ],
        ),
        PaperTable(
            name="recipe",
            title="The paper's recipe and what has been learned since",
            source="recipe (sections 3.1 and A.2)",
            systems=_recipe,
            columns=[_MNLI, _SST2, _MRPC, _NER],
            remarks=[
                "Every row reads as many sequences. To predict 30% of the words takes somewhat "
                "longer for each, and was not made up for. Sources: recipes/pretrain-modern.yaml."
            ],
        ),
    )
}
