"""A stored model: the one form between our models and every format on disk."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_tf.checkpoints import weight_names
from bert_tf.checkpoints.weight_names import SEQUENCES, all_parts
from bert_tf.checkpoints.weights_files import Tensors
from bert_tf.config import BertConfig
from bert_tf.errors import InputError

if TYPE_CHECKING:
    from bert_tf.tokenization.tokenizer import BertTokenizer

_TABLE = "embeddings.word_embeddings.weight"
_BIAS = "cls.predictions.bias"
# Copies of these two in some files.
_DECODER = "cls.predictions.decoder.weight"
_DECODER_BIAS = "cls.predictions.decoder.bias"
# Tokens, sequences and multiple choice are all classified by a layer of the same name.
_CLASSIFIERS = (SEQUENCES, "BertForTokenClassification", "BertForMultipleChoice")
_OWN_HEAD = "own_head"  # key of config.json: class of a task model that is the user's own


@dataclass
class StoredModel:
    """Config, weights and tokenizer of a model in any format."""

    config: BertConfig  # hyper-parameters and labels
    tensors: dict[str, np.ndarray]  # float32, by `canonical_name`, in Hugging Face's shapes
    source: Path = Path()  # the file that holds the tensors, or their index, for messages
    tokenizer: "BertTokenizer | None" = None
    notes: list[str] = field(default_factory=list)  # sentences on what was assumed or left out
    do_lower_case: bool | None = None  # whether it is uncased, if the file of the weights says it

    def __post_init__(self) -> None:
        """Drops a classifier of unknown class, unless it may be one of whole texts."""
        architectures = self.config.extra.get("architectures")
        settled = (self.config.extra.get("problem_type"), self.config.extra.get(_OWN_HEAD))
        if not self.has("classifier.") or any(settled):
            return
        if any(name in str(architectures) for name in _CLASSIFIERS):
            return
        cure = 'write its class into the config, such as "architectures": '
        if not architectures and self.has("pooler."):
            self.notes.append(
                "The classifier is taken to be of whole texts, as nothing says its class: if it is "
                f'of tokens, {cure}["{_CLASSIFIERS[1]}"].'
            )
            return
        self.tensors = {k: x for k, x in self.tensors.items() if not k.startswith("classifier.")}
        self.notes.append(
            f"The classifier is left out, as nothing says whether it is of texts or of tokens: "
            f'{cure}["{SEQUENCES}"] or ["{_CLASSIFIERS[1]}"].'
        )

    @classmethod
    def from_model(cls, model: Any) -> "StoredModel":
        """The stored form of a `bert_tf.models.pretrained_model.PretrainedModel`."""
        head = weight_names.head_of(type(model))
        labels = getattr(model, "labels", None)
        id2label = None if labels is None else dict(enumerate(labels))
        extra = {name: value for name, value in model.config.extra.items() if name != _OWN_HEAD}
        extra |= {"architectures": [head.architecture], "problem_type": head.problem_type}
        if head.is_own:
            extra[_OWN_HEAD] = head.architecture
        named = weight_names.named_weights(model)
        tensors = {weight_names.canonical_name(weight.name): weight.to_tensor() for weight in named}
        return cls(replace(model.config, id2label=id2label, extra=extra), tensors)

    def has(self, part: str) -> bool:
        """Whether the model has a part, a key of `PARTS`."""
        return any(name.startswith(part) for name in self.tensors)

    def order_labels(self, labels: Sequence[str]) -> None:
        """Reorders a classifier's classes as in `labels`, if these are the same names."""
        stored = self.labels or []
        if labels != stored and sorted(labels) == sorted(stored):
            order = [stored.index(label) for label in labels]
            for name in ("classifier.weight", "classifier.bias"):
                self.tensors[name] = self.tensors[name][order]
            self.config = replace(self.config, id2label=dict(enumerate(labels)))

    def keep_layers(self, number: int) -> None:
        """Keeps `number` Transformer layers, evenly spaced up to the last, and renumbers them."""
        layers = self.config.num_hidden_layers
        if number > layers or self.config.architecture.layer_names():
            raise InputError(
                f"{self.source} has {layers} layers: {number} of them cannot be kept; give a BERT "
                "with enough layers"
            )
        numbers = [round((i + 1) * layers / number) - 1 for i in range(number)]
        number_of = {old: new for new, old in enumerate(numbers)}
        tensors = {}
        for name, tensor in self.tensors.items():
            if match := re.match(r"encoder\.layer\.(\d+)\.", name):
                if int(match[1]) not in number_of:
                    continue
                name = f"encoder.layer.{number_of[int(match[1])]}.{name[match.end() :]}"
            tensors[name] = tensor
        self.tensors = tensors
        self.config = replace(self.config, num_hidden_layers=number)
        self.notes.append(f"Kept layers {', '.join(str(n + 1) for n in numbers)} of {layers}.")

    def set_pieces(self, ids: Sequence[int], parts: Sequence[Sequence[int]]) -> None:
        """Gives pieces the mean embedding, and output bias, of others; adds rows for ids beyond."""
        size = max(self.config.vocab_size, *(number + 1 for number in ids))
        for name, axis in ((_TABLE, -2), (_BIAS, -1)):
            if name not in self.tensors:  # a model without a masked language model head
                continue
            old = np.moveaxis(self.tensors[name], axis, 0)
            rows = np.zeros((size, *old.shape[1:]), np.float32)
            rows[: len(old)] = old
            for number, part in zip(ids, parts, strict=True):
                rows[number] = old[part].mean(0)
            self.tensors[name] = np.ascontiguousarray(np.moveaxis(rows, 0, axis))
        self.config = replace(self.config, vocab_size=size)

    @property
    def architecture(self) -> str:
        """Hugging Face's class for the model's parts, or a user's own."""
        if own_class := self.config.extra.get(_OWN_HEAD):
            return str(own_class)
        if self.has("classifier."):
            architectures = str(self.config.extra.get("architectures"))
            return next((name for name in _CLASSIFIERS if name in architectures), SEQUENCES)
        if self.has("qa_outputs."):
            return "BertForQuestionAnswering"
        has_next_sentence = self.has("cls.seq_relationship.")
        if not self.has("cls.predictions."):
            return "BertForNextSentencePrediction" if has_next_sentence else "BertModel"
        return "BertForPreTraining" if has_next_sentence else self.config.architecture.words_class

    @property
    def problem_type(self) -> str | None:
        """The problem type of a sequence classifier, by Hugging Face's rule."""
        if self.architecture != SEQUENCES:
            return None
        problem_type = self.config.extra.get("problem_type")
        return str(
            problem_type or ("regression" if self.classes == 1 else "single_label_classification")
        )

    @property
    def kind(self) -> str:
        return weight_names.Head(self.architecture, problem_type=self.problem_type).kind

    @property
    def classes(self) -> int | None:
        """Number of a classifier's classes; None without a classifier."""
        return len(self.tensors["classifier.bias"]) if "classifier.bias" in self.tensors else None

    @property
    def labels(self) -> list[str] | None:
        """Names of the classifier's classes; None if config.json does not name as many."""
        labels = self.config.labels
        return labels if labels is not None and len(labels) == self.classes else None

    def keep(self, parts: tuple[str, ...], target: str) -> dict[str, np.ndarray]:
        """Selects the tensors of the encoder and of `parts`; notes others that `target` lacks."""
        if self.problem_type is None:  # a classifier of tokens or choices under the same name
            parts = tuple(part for part in parts if part != "classifier.")
        for part, title in all_parts().items():
            if part not in parts and self.has(part):
                self.notes.append(f"The {title} is left out: {target} has no place for it.")
        others = tuple(part for part in all_parts() if part not in parts)
        return {name: t for name, t in self.tensors.items() if not name.startswith(others)}

    def note_differences(self, target: str) -> None:
        """Notes what code other than Hugging Face's computes differently."""
        if self.config.hidden_act == "gelu":
            self.notes.append(
                f"{target} computes GELU by its tanh approximation, this model exactly: outputs "
                "differ in the third or fourth decimal."
            )
        if (eps := self.config.layer_norm_eps) != 1e-12:
            self.notes.append(f"{target} adds 1e-12 to variances, this one {eps}: outputs differ.")

    def tie_decoder(self) -> None:
        """Drops the decoder's copies of shared weights; refuses a decoder that differs."""
        untied = self.config.extra.get("tie_word_embeddings") is False
        if untied and self.has("cls.predictions.") and _DECODER not in self.tensors:
            raise InputError(
                f"{self.source} lacks {_DECODER}, but its config says tie_word_embeddings false: "
                "restore the file, or set tie_word_embeddings to true."
            )
        if _DECODER_BIAS in self.tensors:
            self.tensors.setdefault(_BIAS, self.tensors[_DECODER_BIAS])
        for copy, shared in ((_DECODER, _TABLE), (_DECODER_BIAS, _BIAS)):
            tensor = self.tensors.pop(copy, None)
            if tensor is not None and not np.array_equal(tensor, self.tensors.get(shared, tensor)):
                raise InputError(
                    f"{self.source}: {copy} differs from {shared}, but only a decoder tied to the "
                    "word embeddings is supported: use a model with tied embeddings, or this "
                    "model's encoder alone."
                )

    def check_finite(self) -> None:
        """Refuses weights that are NaN or infinite."""
        for name, tensor in self.tensors.items():
            flat = tensor.reshape(-1)
            # The sum of squares takes a fraction of the time; it may overflow.
            if not np.isfinite(flat @ flat) and not np.isfinite(flat).all():
                raise InputError(
                    f"{self.source}: {name} holds NaN or infinite numbers: give a copy or a "
                    "checkpoint of the model whose weights are finite."
                )

    def check_tensors(self) -> None:
        expected = weight_names.tensor_shapes(self.config)
        for part in ("classifier.", "qa_outputs."):  # the config does not know their classes
            classes = len(self.tensors.get(f"{part}bias", ()))
            expected[f"{part}weight"] = (classes, self.config.hidden_size)
            expected[f"{part}bias"] = (classes,)
        check_shapes(self.tensors, expected, self.source)


def check_shapes(tensors: Tensors, expected: Mapping[str, tuple[int, ...]], source: Path) -> None:
    """Refuses tensors other than expected; a part of `PARTS` may be missing as a whole."""
    absent = tuple(p for p in all_parts() if not any(name.startswith(p) for name in tensors))
    missing = (name for name in expected if name not in tensors and not name.startswith(absent))
    problems = [f"{name} is missing" for name in missing]
    for name, tensor in tensors.items():
        if name not in expected:
            problems.append(f"{name} is unexpected")
        elif tensor.shape != tuple(expected[name]):
            problems.append(f"{name} is {list(tensor.shape)}, not {list(expected[name])}")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InputError(
            f"{source} does not hold the BERT that its config describes: "
            f"{'; '.join(problems[:5])}{more}. Put the model's own config and weights together."
        )


def left_out(names: Sequence[str]) -> list[str]:
    """A note on tensors, if any, that are no part of a BERT."""
    more = f" and {len(names) - 5} more" * (len(names) > 5)
    return [f"Left out, as no part of a BERT: {', '.join(names[:5])}{more}."] if names else []


def check_vocabulary(pieces: int, config: BertConfig, source: Path) -> None:
    """Refuses more pieces than embeddings; some models have more embeddings, as padding."""
    if pieces > config.vocab_size:
        raise InputError(
            f"{source}: the vocabulary has {pieces} pieces, the model {config.vocab_size} "
            "embeddings (vocab_size): put the model's own vocabulary there."
        )
