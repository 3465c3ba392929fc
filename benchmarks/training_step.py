r"""Time of a pre-training step beside KerasHub's, Hugging Face's and its matrix products alone.

    python benchmarks/training_step.py --size small --precision mixed_bfloat16 \
      --sides ours products keras_hub hugging_face --output step.json

The step is that of `bert-tf pretrain`: both losses, accuracies, dropout, clipping by the global
norm, decoupled weight decay and a schedule, on one fixed batch without padding. Every side is a
process of its own; they take turns, a step each. Reported are medians, by the clock and in
processor time, and medians of the ratios within a turn; on a shared machine the ratios of processor
time are the most reliable.

- products: the step's matrix products alone, one after the other, each of its own shape. Their
  share of the step's time is the share of useful work.
- layers: bert-tf with the kernels in keras.ops, with which it trains under XLA and on
  accelerators.
- xla: the same, compiled by XLA.
- allocator: bert-tf under glibc's default settings; freed memory returns to the system after each
  step and is allocated again, page by page.
- keras_hub: `BertBackbone` and `MaskedLMHead` (pip install keras-hub) with Keras' AdamW.
- hugging_face: `BertForPreTraining` with fused AdamW in a plain PyTorch loop, in the Python of
  --peers (benchmarks/peers.py). It computes the vocabulary's scores at every token.
"""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import turns  # benchmarks/turns.py
from peers import add_option, peer_python  # benchmarks/peers.py

SIDES = ("ours", "products", "layers", "xla", "allocator", "keras_hub", "hugging_face")
DROPOUT, LEARNING_RATE, WEIGHT_DECAY, CLIP_NORM = 0.1, 1e-4, 0.01, 1.0


class Size(NamedTuple):
    """Shapes of a model and of a batch of rows."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    batch: int
    length: int
    predictions: int  # in a row
    instances: int = 1  # in a row

    @property
    def inner(self) -> int:
        """Width of the feed-forward network."""
        return 4 * self.width

    def config(self, **settings: Any) -> Any:
        """The `BertConfig`."""
        from bert_tf import BertConfig

        return BertConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            intermediate_size=self.inner,
            hidden_dropout_prob=DROPOUT,
            **{"attention_probs_dropout_prob": DROPOUT, **settings},
        )

    @property
    def flops(self) -> int:
        """Floating-point operations of a step's matrix products, each instance alone."""
        from bert_tf.models.cost import pretraining_flops

        return pretraining_flops(
            self.config(),
            instances=self.batch * self.instances,
            length=self.length // self.instances,
            predictions=self.predictions // self.instances,
        )


SIZES = {
    "tiny": Size(2, 128, 2, 8192, 64, 64, 10),
    "small": Size(4, 512, 8, 30522, 32, 128, 20),
    "small-512": Size(4, 512, 8, 30522, 8, 512, 77),
    "base": Size(12, 768, 12, 30522, 32, 128, 20),
}


def batch_of(size: Size) -> tuple[dict[str, np.ndarray], ...]:
    """Inputs, labels and weights."""
    draw = np.random.default_rng(0)
    of_tokens, of_words = (size.batch, size.length), (size.batch, size.predictions)
    inputs = {
        "token_ids": draw.integers(0, size.vocabulary, of_tokens),
        "segment_ids": draw.integers(0, 2, of_tokens),
        "padding_mask": np.ones(of_tokens),
        "mask_positions": np.stack(
            [np.sort(draw.permutation(size.length)[: size.predictions]) for _ in range(size.batch)]
        ),
    }
    of_pairs: tuple[int, ...] = (size.batch,)
    if size.instances > 1:
        instance = size.length // size.instances  # the length of an instance
        positions, of_pairs = np.arange(size.length), (size.batch, size.instances)
        inputs["padding_mask"] = np.broadcast_to(1 + positions // instance, of_tokens)
        inputs["position_ids"] = np.broadcast_to(positions % instance, of_tokens)
        inputs["first_positions"] = np.broadcast_to(instance * np.arange(size.instances), of_pairs)
    labels = {
        "mlm_logits": draw.integers(0, size.vocabulary, of_words),
        "nsp_logits": draw.integers(0, 2, of_pairs),
    }
    weights = {name: np.ones(values.shape, np.float32) for name, values in labels.items()}
    inputs, labels = (
        {name: values.astype(np.int32) for name, values in columns.items()}
        for columns in (inputs, labels)
    )
    return inputs, labels, weights


def ours(side: str, size: Size, precision: str) -> Callable[[], Any]:
    """The step of `bert-tf pretrain`."""
    import keras
    import tensorflow as tf

    from bert_tf import AdamWeightDecay, BertPreTrainer, WarmupLinearDecay
    from bert_tf.networks.kernels import Kernels
    from bert_tf.networks.tensorflow.losses import accuracy, cross_entropy
    from bert_tf.startup import keep_freed_memory, share_cores
    from bert_tf.training.strategy import without_autotuning
    from bert_tf.training.trainer import Trainer

    if side != "allocator":
        keep_freed_memory()
    if side != "xla":
        share_cores()
    keras.config.set_dtype_policy(precision)
    model = BertPreTrainer(size.config(), seed=0)
    if side == "layers":
        model.encoder.kernels = model.masked_language_model.kernels = Kernels
    outputs = ("mlm_logits", "nsp_logits")
    trainer = Trainer(
        model,
        AdamWeightDecay(
            WarmupLinearDecay(LEARNING_RATE, 100, 10_000),
            weight_decay_rate=WEIGHT_DECAY,
            clip_norm=CLIP_NORM,
        ),
        loss=dict.fromkeys(outputs, cross_entropy),
        metrics={name: {"accuracy": accuracy} for name in outputs},
        jit_compile=side == "xla",
    )
    batches = iter(without_autotuning(tf.data.Dataset.from_tensors(batch_of(size)).repeat()))
    return lambda: float(trainer.train(batches)["loss"])


def products(side: str, size: Size, precision: str) -> Callable[[], Any]:
    """The matrix products of forward and backward pass."""
    import tensorflow as tf

    from bert_tf.startup import keep_freed_memory

    keep_freed_memory()
    dtype = tf.float32 if precision == "float32" else precision.removeprefix("mixed_")
    tokens, words = size.batch * size.length, size.batch * size.predictions
    width, heads = size.width, [size.batch, size.heads]
    head = width // size.heads
    # (leading axes, rows, columns of the first factor, columns of the second), how many
    shapes = [
        (([], tokens, width, 3 * width), size.layers),
        (([], tokens, width, width), size.layers),
        (([], tokens, width, size.inner), size.layers),
        (([], tokens, size.inner, width), size.layers),
        ((heads, size.length, head, size.length), size.layers),
        ((heads, size.length, size.length, head), size.layers),
        (([], words, width, width), 1),
        (([], words, width, size.vocabulary), 1),
    ]

    def random(*shape: int) -> Any:
        return tf.Variable(tf.cast(tf.random.normal(shape), dtype))

    factors = [
        (random(*axes, rows, inner), random(*axes, inner, columns), random(*axes, rows, columns))
        for (axes, rows, inner, columns), _ in shapes
    ]

    @tf.function
    def step() -> Any:
        done: list[Any] = []
        results = []  # all are returned: TensorFlow leaves out what nobody reads
        for (x, y, z), (_, number) in zip(factors, shapes, strict=True):
            for _ in range(number):
                for a, b, options in (
                    (x, y, {}),
                    (z, y, {"transpose_b": True}),
                    (x, z, {"transpose_a": True}),
                ):
                    with tf.control_dependencies(done):  # one after the other
                        a, b = tf.identity(a), tf.identity(b)
                    done = [tf.matmul(a, b, **options)[..., 0, 0]]
                    results += done
        return results

    return lambda: step()[-1].numpy()


def keras_hub(side: str, size: Size, precision: str) -> Callable[[], Any]:
    """KerasHub's layers, trained by Keras."""
    import keras
    import keras_hub
    import tensorflow as tf

    from bert_tf.startup import keep_freed_memory

    keep_freed_memory()
    keras.config.set_dtype_policy(precision)
    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=size.vocabulary,
        num_layers=size.layers,
        num_heads=size.heads,
        hidden_dim=size.width,
        intermediate_dim=size.inner,
        dropout=DROPOUT,
    )
    positions = keras.Input((None,), dtype="int32", name="mask_positions")
    words = keras_hub.layers.MaskedLMHead(
        token_embedding=backbone.token_embedding,
        intermediate_activation=lambda x: keras.activations.gelu(x, approximate=False),
        name="mlm_logits",
    )(backbone.output["sequence_output"], mask_positions=positions)
    pairs = keras.layers.Dense(2, name="nsp_logits")(backbone.output["pooled_output"])
    model = keras.Model(
        {**backbone.input, "mask_positions": positions}, {"mlm_logits": words, "nsp_logits": pairs}
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.AdamW(
        keras.optimizers.schedules.PolynomialDecay(LEARNING_RATE, 10_000, 0.0),
        weight_decay=WEIGHT_DECAY,
        global_clipnorm=CLIP_NORM,
    )
    outputs = ("mlm_logits", "nsp_logits")
    model.compile(
        optimizer,
        loss=dict.fromkeys(outputs, loss),
        weighted_metrics={name: ["accuracy"] for name in outputs},
        jit_compile=False,
    )
    batch = tf.nest.map_structure(tf.constant, batch_of(size))
    return lambda: model.train_on_batch(*batch)


def hugging_face(side: str, size: Size, precision: str) -> Callable[[], Any]:
    """Hugging Face's model in a PyTorch loop, on a GPU if there is one; runs in its Python."""
    import torch
    import transformers

    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = transformers.BertConfig(
        vocab_size=size.vocabulary,
        hidden_size=size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.inner,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=DROPOUT,
    )
    config._attn_implementation = "sdpa"
    model = transformers.BertForPreTraining(config).train().to(device)
    optimizer = adamw(model, LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 10_000)
    inputs, labels, _ = batch_of(size)
    words = np.full((size.batch, size.length), -100)  # no loss there
    np.put_along_axis(words, inputs["mask_positions"], labels["mlm_logits"], 1)
    tensors = {
        name: torch.from_numpy(values).long().to(device)
        for name, values in (
            ("input_ids", inputs["token_ids"]),
            ("token_type_ids", inputs["segment_ids"]),
            ("attention_mask", inputs["padding_mask"]),
            ("labels", words),
            ("next_sentence_label", labels["nsp_logits"]),
        )
    }

    def step() -> None:
        with torch.autocast(device, torch.bfloat16, enabled=precision != "float32"):
            loss = model(**tensors).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        loss.item()

    return step


MAKERS = {"products": products, "keras_hub": keras_hub, "hugging_face": hugging_face}


def adamw(model: Any, learning_rate: float, epsilon: float = 1e-8) -> Any:
    """PyTorch's fused AdamW, the default of Hugging Face's Trainer."""
    import torch

    decayed, plain = [], []
    for name, parameter in model.named_parameters():
        (plain if "LayerNorm" in name or "bias" in name else decayed).append(parameter)
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}],
        lr=learning_rate,
        eps=epsilon,
        fused=True,
    )


def measure(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Times of the sides in turns."""
    commands = {}
    for side in options.sides:
        python = peer_python(options.peers) if side == "hugging_face" else sys.executable
        commands[side] = [python, *sys.argv, "--side", side]
    # The first turns trace the graph and fill the memory.
    times = turns.take_turns(commands, options.turns, warm_up=2)
    size = SIZES[options.size]
    useful = size.flops, options.precision.removeprefix("mixed_")
    return turns.summary(
        {side: of_side[:, 0] for side, of_side in times.items()},
        size.batch * size.length,
        "tokens",
        dict.fromkeys(times, useful),
    )


def main() -> None:
    """Measures and prints."""
    parser = turns.parser(__doc__, 7)
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--precision", default="float32", help="Keras dtype policy")
    parser.add_argument("--steps", type=int, default=1, help="steps per turn")
    parser.add_argument(
        "--sides",
        nargs="+",
        choices=SIDES,
        default=["ours", "products", "layers"],
        help="what to measure (default: ours products layers)",
    )
    add_option(parser)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        make = MAKERS.get(options.side, ours)
        step = make(options.side, SIZES[options.size], options.precision)
        turns.answer(lambda _: turns.timed(step, options.steps))
        return
    rows = measure(options)
    work = f"pre-training, {options.size}, {options.precision.removeprefix('mixed_')}"
    turns.write({work: rows}, options.output)
    print(f"{work}, {SIZES[options.size]}, {os.cpu_count()} cores\n")
    print(turns.table(rows))


if __name__ == "__main__":
    main()
