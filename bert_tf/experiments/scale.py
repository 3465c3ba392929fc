"""The settings of each scale, in one place: of the paper, and small enough for a few cores."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Settings that all tables share."""

    name: str  # name on the command line
    vocabulary_size: int  # maximum number of pieces
    do_lower_case: bool  # whether the vocabulary is uncased
    lengths: tuple[int, ...]  # tokens per instance: short, and then long ones if there are two
    shards: Mapping[str, Any]  # options of `PretrainingDataOptions`
    pretraining: Mapping[str, Any]  # options of `PretrainingOptions` of every system
    # options of `SearchOptions` on every task; every learning rate is tried with one seed
    finetuning: Mapping[str, Any]
    features: Mapping[str, Any]  # the same, on a frozen encoder
    # task -> options of `SearchOptions` on this task
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    seeds: int  # runs of every fine-tuning
    checkpoint_every: int  # steps between two models of a pre-training that are kept
    large: str  # size of the larger model, beside that of `pretraining`
    # models to compare, as options of `PretrainingOptions`, by name
    sizes: Mapping[str, Mapping[str, Any]]
    layered: str  # size of the model whose layers are compared
    lstm_size: str  # size of the LSTM language models in ELMo's manner
    all_layers: str  # layers of the feature-based approach
    training_steps: tuple[int, ...]  # steps at which pre-training is looked at


# A narrow model and minutes of training: no dropout, larger initial weights and a high learning
# rate, with which it soon learns more than word frequencies (see bert_tf/cli/demo.py).
SMALL = Scale(
    name="small", vocabulary_size=8192, do_lower_case=True, lengths=(64,),
    shards={"masking": "dynamic", "dupe_factor": 2, "held_out_share": 0.02, "seed": 1},
    pretraining={
        "size": "tiny", "dropout": 0.0, "initializer_range": 0.06, "batch_size": 64, "steps": 4000,
        "learning_rate": 2e-3, "precision": "auto", "evaluate_every": 1000,
        "evaluation_batches": 50, "seed": 1,
    },
    finetuning={
        "batch_size": [32], "learning_rate": [2e-4, 5e-4], "epochs": [3], "max_length": 64,
        "precision": "auto", "seed": 1,
    },
    features={"learning_rate": [1e-3], "max_steps": 300},
    tasks={
        "classification": {"epochs": [8]},
        "conll2003": {"max_steps": 600},
        "squad": {"epochs": [5], "doc_stride": 24, "max_query_length": 24},
        "squad2": {"epochs": [5], "doc_stride": 24, "max_query_length": 24},
    },
    seeds=3, checkpoint_every=1000, large="4x128x2",
    sizes={
        "2 layers, 64 wide": {"size": "2x64x1"},
        "1 layer, 128 wide": {"size": "1x128x2"},
        "2 layers, 128 wide": {"size": "tiny"},
        "4 layers, 128 wide": {"size": "4x128x2"},
        "2 layers, 256 wide": {"size": "2x256x4"},
    },
    layered="4x128x2", lstm_size="2x128x2", all_layers="-1,-2",
    training_steps=(1000, 2000, 3000, 4000),
)  # fmt: skip

# Sections 4, 5, A.2 and A.3. The warm-up of 10,000 steps is the default.
PAPER = Scale(
    name="paper", vocabulary_size=30_522, do_lower_case=True, lengths=(128, 512),
    shards={"masking": "dynamic", "dupe_factor": 10, "held_out_share": 0.005},
    pretraining={
        "size": "base", "batch_size": 256, "steps": 1_000_000, "learning_rate": 1e-4,
        "evaluate_every": 10_000, "evaluation_batches": 100, "save_every": 5000,
        "precision": "auto",
    },
    finetuning={"batch_size": [32], "epochs": [3], "precision": "auto"},
    features={"learning_rate": [1e-3]},
    tasks={
        "squad": {"learning_rate": [5e-5], "max_length": 384},
        "squad2": {"learning_rate": [5e-5], "batch_size": [48], "epochs": [2], "max_length": 384},
        "swag": {"learning_rate": [2e-5], "batch_size": [16]},
    },
    seeds=5, checkpoint_every=100_000, large="large",
    sizes={
        "3 layers, 768 wide, 12 heads": {"size": "3x768x12"},
        "6 layers, 768 wide, 3 heads": {"size": "6x768x3"},
        "6 layers, 768 wide, 12 heads": {"size": "6x768x12"},
        "12 layers, 768 wide, 12 heads": {"size": "base"},
        "12 layers, 1024 wide, 16 heads": {"size": "12x1024x16"},
        "24 layers, 1024 wide, 16 heads": {"size": "large"},
    },
    layered="base", lstm_size="2x512x8", all_layers="concat_last_four",
    training_steps=tuple(range(100_000, 1_000_001, 100_000)),
)  # fmt: skip

SCALES = {scale.name: scale for scale in (SMALL, PAPER)}
