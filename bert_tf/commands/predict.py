"""Answer raw strings, from an exported SavedModel or a fine-tuned model directory.

  bert-tf predict --model saved_models/classifier --text "a raw string" "another one"
  bert-tf predict --model runs/classifier/best --input new.csv --output answers.csv
  bert-tf predict --model runs/cola/best --input glue/CoLA --split test --submission submission
  cat texts.txt | bert-tf predict --model saved_models/classifier --input - --format lines

Writes one JSON object per text, or a table if --output ends in .csv or .tsv. Both keep all columns
of the input; one that has the name of an answer's column becomes input_NAME. A classifier gives the
label, its probability, and the probabilities of all labels; a regression model gives the score; a
tagger gives entities and words with their spans; a model for choices gives the number and the
probability of the best one; a model of SQuAD answers the question --text in the context --pair.
--submission writes the official files: GLUE's TSV, such as CoLA.tsv; predictions.json,
nbest_predictions.json and null_odds.json of SQuAD; CoNLL's columns; predictions.tsv for data of
your own.
"""

from bert_tf.api.predict import PredictOptions as Options
from bert_tf.api.predict import predict
from bert_tf.api.progress import console
from bert_tf.serving.packed_weights import pack_weights, types_of


def prepare(options: Options) -> None:
    pack_weights(types_of([options.model]))


def run(options: Options) -> None:
    result = predict.of(options)
    for line in result.lines():
        console.print(line)
    if result.output is None and result.submission is None:
        from bert_tf.trained.answer_files import json_line

        for row in result.rows:
            print(json_line(row))
