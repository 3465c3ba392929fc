from cases import for_each

from bert_tf.files.lock import locked


@for_each("kind", "file", "folder")
def test_one_holds_a_path_until_its_block_ends(tmp_path, kind):
    path = tmp_path / kind
    path.mkdir() if kind == "folder" else path.touch()
    with locked(path) as first, locked(path) as second, locked(path, is_shared=True) as third:
        assert (first, second, third) == (True, False, False)
    with locked(path, waits=True) as is_held:
        assert is_held


def test_those_that_share_keep_others_away(tmp_path):
    with locked(tmp_path / "missing") as is_held:
        assert is_held is None
    assert not list(tmp_path.iterdir())
    with locked(tmp_path, is_shared=True) as one, locked(tmp_path, is_shared=True) as other:
        assert one and other
        with locked(tmp_path) as alone:
            assert alone is False
