from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_data import CONFIG, DATA, VOCABULARY

from bert_tf import BertClassifier, BertEncoder, BertTokenizer, save_model


@pytest.fixture(scope="session")
def preset(made_once) -> Path:
    def make(folder: Path) -> None:
        folder.mkdir()
        (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n", encoding="utf-8")
        tokenizer = BertTokenizer(folder / "vocab.txt", do_lower_case=True)
        save_model(BertEncoder(CONFIG, seed=1), folder, tokenizer)

    return made_once("raw_text_preset", make)


@pytest.fixture(scope="session")
def opened(preset) -> Callable[..., Any]:
    """`opened(model_class, **arguments)`: a new model from the preset, run eagerly.

    A step then takes a tenth of a second, where tracing takes many.
    """

    def open_model(
        model_class: type = BertClassifier, run_eagerly: bool = True, **arguments: Any
    ) -> Any:
        own = DATA[model_class][0]
        model = model_class.from_preset(preset, **{"seed": 1, **own, **arguments})
        if model.new_loss:
            model.compile(run_eagerly=run_eagerly)
        return model

    return open_model
