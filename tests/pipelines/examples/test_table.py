"""Examples of a table: what looks wrong, places, parts."""

from bert_tf.pipelines.examples.files import read_table


def test_what_looks_wrong_is_said(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('a film\tpos\n"say ""no"" to it"\tneg\nb\tpos\n')
    first_line, quoted = read_table(path).examples({"text": "0", "label": "1"}).remarks()
    assert (
        "its first line ('a film', 'pos') was read as names of columns; give --no_h" in first_line
    )
    assert "1 examples have a text in a CSV's quotes, which a .tsv does not have" in quoted
    assert len(read_table(path, header=False).examples({"text": "0"}).remarks()) == 1
    assert read_table(path).examples({"text": "a film"}).remarks() == [quoted]
