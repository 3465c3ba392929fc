"""Steps reuse the memory of the steps before them, whatever the process did first.

Each case is a process of its own, in which tensors come from malloc: with oneDNN's optimizations
TensorFlow pools them on some processors.
"""

import json
import os
import statistics
import sys

import pytest
from cases import for_each
from command_line import finished

BATCH, LENGTH, WIDTH = 64, 64, 64
# Hidden states of half a batch in float32: the smallest of the step's many tensors of that shape.
PAGES = BATCH // 2 * LENGTH * WIDTH * 4 // os.sysconf("SC_PAGE_SIZE")

START = f"""
import json, resource, sys
from pathlib import Path
from bert_tf import startup
startup.import_tensorflow()
folder, BATCH, LENGTH, WIDTH, faults = Path(sys.argv[1]), {BATCH}, {LENGTH}, {WIDTH}, []
def count():
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
END = """
print(json.dumps([after - before for before, after in zip(faults, faults[1:])]))
"""
# As `demo` and `reproduce` do it.
AFTER_SHARDS = """
import random
from bert_tf.commands import pretrain, shards
from bert_tf.training.trainer import Trainer
startup.share_cores()
words = [f"w{number}" for number in range(8187)]
pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
(folder / "vocab").mkdir()
(folder / "vocab/vocab.txt").write_text("\\n".join(pieces))
(folder / "vocab/tokenizer_config.json").write_text('{"do_lower_case": true}')
draw = random.Random(0)
lines = [" ".join(draw.choices(words, k=20)) for _ in range(900)]
documents = ["\\n".join(lines[n : n + 30]) for n in range(0, 900, 30)]
(folder / "corpus.txt").write_text("\\n\\n".join(documents))
data = {"corpus": [f"{folder}/corpus.txt"], "tokenizer": f"{folder}/vocab"}
out = {"output": f"{folder}/shards", "max_seq_length": [LENGTH]}
shards.run(shards.Options(**data, **out))
taken = Trainer.train
def train(self, batches):
    count()
    return taken(self, batches)
Trainer.train = train
pretrain.run(pretrain.Options(
    shards=f"{folder}/shards", output=f"{folder}/run", size=f"1x{WIDTH}x1", batch_size=BATCH,
    steps=16, evaluate_every=16, strategy="one",
))
"""
ON_A_GENERATOR = """
import keras, numpy as np
from bert_tf import BertClassifier, BertConfig
config = BertConfig.named(f"1x{WIDTH}x1", vocab_size=100, max_position_embeddings=LENGTH)
model = BertClassifier(config, 2)
ids = np.ones([BATCH, LENGTH], "int32")
inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": ids}
def batches():
    while True:
        yield inputs, np.zeros([BATCH], "int32")
class Steps(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        count()
model.fit(batches(), steps_per_epoch=16, callbacks=[Steps()], verbose=0)
"""


@pytest.mark.slow
@for_each("code", AFTER_SHARDS, ON_A_GENERATOR, ids=["after shards", "fit on a generator"])
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc")
def test_steps_take_no_new_memory(code, tmp_path):
    """TensorFlow's first generator has malloc return each block of over 128 kB at once."""
    env = {"TF_ENABLE_ONEDNN_OPTS": "0"}
    done = finished(sys.executable, "-c", START + code + END, tmp_path, env=env)
    faults = json.loads(done.stdout.splitlines()[-1])
    assert statistics.median(faults[-7:]) < PAGES, faults
