from dataclasses import dataclass

import numpy as np
import pytest
from cases import refused
from tiny import tiny_config

from bert_tf import BertConfig, BertEncoder, extensions, load_model, save_model
from bert_tf.errors import InputError
from bert_tf.options import CheckedOptions, extended

PACKAGE = """
from dataclasses import dataclass
from bert_tf.extensions import Architecture
from bert_tf.options import CheckedOptions

class Neighbours(Architecture):
    direction = "neighbours"  # tokens attend to themselves and to the tokens beside them
    marks = {"model_type": "bert_neighbours"}

    @staticmethod
    def is_seen(position, other):
        return (position - other) ** 2 <= 1

@dataclass(kw_only=True)
class More(CheckedOptions):
    reach: int = 1
"""


@pytest.fixture
def package(monkeypatch, tmp_path):
    (tmp_path / "neighbours.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    before = {table: [*entries] for table, entries in extensions._ENTRIES.items()}
    monkeypatch.setattr(extensions, "_ENTRIES", before)
    extensions.add("architectures", "neighbours:Neighbours")
    extensions.add("some options", "neighbours:More", "no_such_package.options:More")
    yield
    monkeypatch.undo()
    extensions.added.cache_clear()


def test_an_encoder_of_another_architecture(package, tmp_path):
    config = tiny_config(11, intermediate_size=8, attention_direction="neighbours")
    save_model(BertEncoder(config, seed=1), tmp_path / "model")
    assert '"model_type": "bert_neighbours"' in (tmp_path / "model" / "config.json").read_text()
    encoder = load_model(tmp_path / "model")
    ids = np.full((2, 6), 5)
    ids[1, 0] = 7
    inputs = {"token_ids": ids, "segment_ids": ids * 0, "padding_mask": ids * 0 + 1}
    one, other = np.asarray(encoder(inputs)["sequence_output"])
    changed = np.abs(one - other).max(-1) > 1e-6
    assert changed.tolist() == [True, True, False, False, False, False]


def test_without_it_its_name_and_its_files_are_refused():
    with pytest.raises(InputError, match="attention_direction is 'neighbours': give one of both"):
        BertConfig(attention_direction="neighbours")
    with pytest.raises(InputError, match="model_type is 'bert_neighbours', but only 'bert'"):
        BertConfig.from_dict({"model_type": "bert_neighbours"})


def test_options_are_joined_and_missing_packages_left_out(package):
    @extended("some options")
    @dataclass(kw_only=True)
    class Options(CheckedOptions):
        size: int = 2

    assert (Options(reach=3).reach, Options().size) == (3, 2)
    refused("--reach is 'far'", Options, reach="far")
