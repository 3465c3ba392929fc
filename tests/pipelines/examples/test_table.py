from bert_tf.pipelines.examples.files import read_table


def test_what_looks_wrong_is_said(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text('a film\tpos\n"say ""no"" to it"\tneg\nb\tpos\n')
    first_line, quoted = read_table(path).examples({"text": "0", "label": "1"}).remarks()
    assert "its first line ('a film', 'pos') was read as column names; give --no_h" in first_line
    assert "1 examples have a text in a CSV's quotes, which a .tsv does not have" in quoted
    assert len(read_table(path, header=False).examples({"text": "0"}).remarks()) == 1
    assert read_table(path).examples({"text": "a film"}).remarks() == [quoted]
    path.write_text("text\ttext_pair\nsea\tcow\n")
    (unread,) = read_table(path).examples({"text": "text"}).remarks()
    assert "its column text_pair is not read; for pairs give --pair_column" in unread
    assert not read_table(path).examples({"text": "text", "text_pair": "text_pair"}).remarks()


def test_the_role_of_a_column_is_known_by_its_name(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": "x", "b": ["y"], "b1": "z", "label": 1}\n')
    source = read_table(tmp_path / "a.jsonl").examples({"context": "a", "choices": "b*"}).source
    roles = [source.role_of(name) for name in ("a", "b", "b1", "b_1", "label")]
    assert roles == ["context", "choices", "choices", None, None]
