"""Data pipelines: text to shards, shards to batches, labelled text to batches.

Glossary, in the order of the data flow:

- *corpus*: the text to pre-train on; its *sources* are files and TensorFlow Datasets.
- *document*: consecutive text that belongs together: lines between blank lines, a file, a section
  of a file, a JSON object. Sentence pairs never cross its borders.
- *slice*: consecutive documents of one source, a range of bytes or examples.
- *unit*: slices with about 32 MB of text, independent of other units.
- *part*: up to 256 kB of a document, held out or trained on as a whole.
- *batch of documents*: text that is held at once; *passage*: consecutive lines of a document in it;
  *donors* are passages of other documents, drawn once for the corpus, that only provide random next
  sentences.
- *group*: batches with about 32 MB of text whose shards are finished together.
- *instance*: token ids for one sequence: a sentence pair or full sentences. A *record* is its
  serialized form.
- *round*: one pass over the text; `dupe_factor` rounds give different pairs and masks.
- *split*: "train" or "held_out".
- *shard*: a TFRecord file of one split, group and round.
- *block*: 256 consecutive records of a shard; *window*: 64 blocks that are shuffled together.
- *example*: labelled text for fine-tuning; *table*: its columns by name, from a file, a data set or
  memory.
"""
