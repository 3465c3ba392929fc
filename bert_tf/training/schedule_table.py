"""Learning rate schedules by name, for the option, its messages and Keras' files.

A new schedule is a class in `bert_tf.training.schedule` and a line here. Importing this module is
quick, as `--help` needs it.
"""

from typing import TYPE_CHECKING, Literal

SCHEDULES = {  # name of the option's value -> class
    "linear": "WarmupLinearDecay",
    "cosine": "WarmupCosineDecay",
    "constant": "WarmupConstant",
    "warmup_stable_decay": "WarmupStableDecay",
}
if TYPE_CHECKING:
    ScheduleName = str
else:
    ScheduleName = Literal[tuple(SCHEDULES)]
