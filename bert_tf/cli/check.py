r"""Check labelled text before a model learns from it.

  bert-tf check --train train.tsv --validation dev.tsv --test test.tsv --output checked --clean
  bert-tf check --task mrpc --data glue/MRPC
  bert-tf check --train reviews.csv --text_column review --label_column stars \
    --model models/base --max_length 64

Finds near-duplicates within and between the splits, labels that are probably wrong, empty and
damaged texts, texts in another script than most, texts that the model would cut, and labels that
are spelt in two ways. --output has a report with samples and a table of every kind of finding;
--clean writes a copy without them (docs/checking-data.md).
"""

from bert_tf.api.check import CheckOptions as Options
from bert_tf.api.check import run as check
from bert_tf.cli.progress import console


def run(options: Options) -> None:
    result = check(options)
    for line in result.lines():
        console.print(line)
    for table in result.tables():
        for place, what, text in table.rows[:3]:
            console.print(f"  {place}: {what}: {' '.join(text.split())[:80]}")
