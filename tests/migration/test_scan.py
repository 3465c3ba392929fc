import json
import re

import pytest
from cases import for_each, refused

from bert_tf.errors import InputError
from bert_tf.migration.scan import scan


@pytest.fixture
def scanned(tmp_path):
    def scan_code(code, name="script.py"):
        path = tmp_path / name
        path.write_text(code)
        report = scan(path)
        places = {x.name: x.locations for x in report.findings}
        lines = {
            name: [x.removeprefix(f"{path}:") for x in found] for name, found in places.items()
        }
        return lines, report

    return scan_code


def notebook(*cells: str) -> str:
    return json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]})


URL = "https://storage.googleapis.com/bert_models/2018_10_18/uncased_L-12_H-768_A-12.zip"
IMPORT = "1 TFBertModel"
CASES = {
    "names by every kind of import": (
        "script.py",
        "import transformers as t\n"
        "from transformers.models.bert.modeling_tf_bert import TFBertModel as Encoder\n"
        "import tensorflow as tf, tensorflow_hub as hub\n"
        "def make():\n    from transformers import TFAutoModel\n"
        "    return TFAutoModel.from_pretrained('x'), Encoder, t.TFBertMainLayer\n"
        "hub.load('f'); Encoder\ntf.keras.Model\n",
        "6 TFAutoModel; 6 7 TFBertModel; 6 TFBertMainLayer; 7 load",
    ),
    "an import that is not used": ("script.py", "from transformers import TFBertModel\n", IMPORT),
    "a star import": (
        "script.py",
        "from transformers import *\nTFBertModel.from_pretrained('x')\nother()\n"
        "TFXLNetModel, XLNetTokenizer, Model, thing\nclass TFMine: pass\nTFMine()\n",
        "2 TFBertModel; 4 TFXLNetModel; 4 XLNetTokenizer",
    ),
    "uses without a name": (
        "script.py",
        "import os\nos.environ['TF_USE_LEGACY_KERAS'] = '1'\n"
        "from transformers import TFBertForTokenClassification, AutoTokenizer\n"
        "tokenizer = AutoTokenizer.from_pretrained('x')\n"
        "tokens = tokenizer.encode_plus('a', return_tensors='tf', truncation=True)\n"
        "model = TFBertForTokenClassification.from_pretrained('x', from_pt=True)\n"
        "model.compile(optimizer='adam')\n"
        "model.compile('adam', 'mse'); model.compile(loss='mse'); model.compile(**options)\n"
        "model.prepare_tf_dataset(d); b'bytes'.decode(); tokenizer.decode(tokens['input_ids'])\n"
        "model.save_pretrained('y', saved_model=True)\nlabels = [-100]\n"
        "'input_ids'  # a string alone is no use\n",
        "2 TF_USE_LEGACY_KERAS; 4 AutoTokenizer; 5 .encode_plus; 5 return_tensors=tf; "
        "5 truncation=; 6 TFBertForTokenClassification; 6 from_pt=True; 7 compile() without loss; "
        "9 .prepare_tf_dataset; 9 .decode; 9 input_ids; 10 .save_pretrained; 10 saved_model=True; "
        "11 -100",
    ),
    "layers of TF Hub": (
        "script.py",
        "import tensorflow_hub as hub\nurl = 'preprocess/3'\n"
        "before = hub.KerasLayer(url)\nencoder = hub.KerasLayer('encoder')\n"
        "hub.KerasLayer('encoder', trainable=flag)\n"
        "pooled, sequence = encoder([a, b])\nbefore(['text'])[0]\n",
        "3 KerasLayer of a preprocessor; 4 5 KerasLayer; 4 KerasLayer() without trainable; "
        "5 trainable=; 6 [0]; 6 [1]; 6 inputs by position",
    ),
    "flags that a copy of the scripts defines": (
        "script.py",
        "import modeling\nflags.DEFINE_string('bert_config_file', None, 'x')\n"
        "flags.DEFINE_string('mine', None, 'x')\nmodeling.BertConfig.from_json_file('x')\n",
        "2 --bert_config_file; 4 BertConfig",
    ),
    "another library": (
        "script.py",
        "from bert4keras.models import build_transformer_model as b\nb()\n",
        "2 build_transformer_model",
    ),
    "a shell script": (
        "run.sh",
        "# python run_classifier.py --task_name\nexport X=1\n"
        "python ${ROOT}/run_pretraining.py \\\n  --input_file=a --num_train_steps 10\n"
        "python -m official.nlp.data.create_pretraining_data --dupe_factor=5\n"
        f"python my_script.py --task_name=cola\nwget {URL}\nexport TF_KERAS=1\n# {URL}\n",
        "3 run_pretraining.py; 4 --input_file; 4 --num_train_steps; 5 create_pretraining_data; "
        f"5 --dupe_factor; 7 {URL}; 8 TF_KERAS",
    ),
    "a batch file of Windows": (
        "run.bat",
        "rem python run_squad.py --doc_stride 1\n"
        "python run_classifier.py^\n --task_name cola^\n --max_seq_length 128\n",
        "2 run_classifier.py; 3 --task_name; 4 --max_seq_length",
    ),
    "settings of Model Garden": (
        "experiment.yaml",
        "task:\n  model: {num_classes: 3}\n  train_data:\n    global_batch_size: 32\n"
        "trainer:\n  train_steps: 100\n  optimizer_config:\n    warmup: {type: linear}\n",
        "2 task.model.num_classes; 4 task.train_data.global_batch_size; 6 trainer.train_steps; "
        "8 trainer.optimizer_config.warmup.type",
    ),
    "classes in YAML": (
        "train.yaml",
        "model:\n  class: transformers.TFBertModel\n  name: bert\ntokenizer: BertTokenizer\n",
        "2 TFBertModel; 4 BertTokenizer",
    ),
    "a cell that writes a file": (
        "notebook.ipynb",
        notebook("%%writefile run.sh\npython run_squad.py\n"),
        "cell 1:2 run_squad.py",
    ),
}


@for_each("case", *CASES)
def test_symbols_are_found_at_their_lines(scanned, case):
    name, code, expected = CASES[case]
    lines, report = scanned(code, name)
    found = [f"{' '.join(numbers)} {symbol}" for symbol, numbers in lines.items()]
    assert sorted(found) == sorted(expected.split("; "))
    assert report.known == len(report.findings) and not report.unread


HF = "from transformers import "
TAGGER = HF + "TFBertForTokenClassification as T\n"
KEPT = "from keras.callbacks import *\np = 'w.h5'\n"
LAYER = "TFBertMainLayer"
OLD = " of an older format"
QA = (
    "from transformers import TFBertForQuestionAnswering as Q, TFBertModel, BertTokenizer\n"
    "tokenizer, model = BertTokenizer.from_pretrained('x'), Q.from_pretrained('x')\n"
)


@for_each(
    "code name says",
    ("model(x)[0]", "[0]", "logits[..., 0]"),
    ("y = model(x)\ny[1]", "[1]", "logits[..., 1]"),
    ("start, end = model(x)[:2]", "[1]", "logits[..., 1]"),
    ("y = model.predict(x)\nstart, end = y", "[0]", "logits[..., 0]"),
    ("TFBertModel.from_pretrained('x')(ids)[1]", "[1]", "pooled_output"),
    ("def f(encoder):\n  return encoder(x)[0]\nf(TFBertModel(c))", "[0]", "sequence_output"),
    ("def f():\n  return TFBertModel(c)\nm = f()\nm(x)[2]", "[2]", "hidden_states"),
    ("class A:\n def a(s): s.b = TFBertModel(c)\n def c(s): s.b(x)[0]", "[0]", "sequence_o"),
    (HF + "TFAutoModelForMaskedLM as M\nM.from_config(c)(i).logits", "logits", "mask_pos"),
    ("model.layers[0](x)[0]", "[0]", "sequence_output"),
    ("model.compile('adam', model.compute_loss)", "compute_loss", "drop it"),
    ("model(input_ids=i)", "input_ids=", "one dict"),
    ("model(i, attention_mask=m)", "attention_mask=", "padding_mask"),
    ("model([i, m])", "inputs by position", "one dict"),
    ("model(x, labels=y)", "labels=", "model.fit"),
    ("i = tokenizer(t)\ni.input_ids", "input_ids", "token_ids"),
    ("tokenizer(t, padding=p)", "padding=", "Packer"),
    ("tokenizer(t)", "tokenizer()", "Packer"),
    ("tokenizer.encode(t)", ".encode", "Packer"),
    ("tokenizer.tokenize(t)", ".tokenize", "which returns ids here"),
    ("model.bert.trainable = False", "bert", "model.encoder"),
    ("model.bert(x)", ".bert", "model.encoder"),
    ("config.num_labels = 3", "num_labels", "labels=[...]"),
    (TAGGER + "T.from_pretrained('x', num_labels=n)", "num_labels=", "bert_tf.BertTagger"),
    ("Q.from_pretrained('x', cache_dir=d)", "cache_dir=", "drop it"),
    ("import transformers as t\ngetattr(t, 'TFBertMainLayer')", LAYER, ""),
    ("import importlib\nt = importlib.import_module('transformers')\nt.TFBertMainLayer", LAYER, ""),
    ("import tokenizers as t\nt.BertWordPieceTokenizer('v').encode('a').offsets", "offsets", "_o"),
    ("import tensorflow as tf\ntf.Session()", "tf.Session", "no sessions"),
    ("import tensorflow.compat.v1 as tf\ntf.train.Saver()", "tf.train.Saver", "convert"),
    ("import tensorflow as tf\ntf.keras.losses.Reduction.NONE", "Reduction", "none"),
    ("from tensorflow.keras.optimizers import Adam\nAdam(lr=1e-5)", "lr=", "learning_rate="),
    ("import tensorflow_addons as tfa\ntfa.optimizers.AdamW(1e-5)", "AdamW", "AdamWeightDecay"),
    ("import keras\nmodel.save('folder')", "save()" + OLD, ".keras"),
    ("import keras\nmodel.save_weights('w.h5')", "save_weights()" + OLD, ".we"),
    (KEPT + "ModelCheckpoint(p, save_weights_only=True)", "ModelCheckpoint()" + OLD, ".we"),
)
def test_what_values_are(scanned, code, name, says):
    """Outputs by position, keyword inputs, methods: by the class that made the value."""
    _, report = scanned(QA + code)
    rows = [finding.row for finding in report.findings if finding.name == name]
    assert len(rows) == 1
    assert says in rows[0].instead


BERT4KERAS = "from bert4keras.models import build_transformer_model as b\n"
GARDEN = "from official.nlp.modeling import networks as n\n"
KERAS_BERT = "from keras_bert import Tokenizer\n"
SIMPLE = "simplified=True"
NER = "from simpletransformers.ner import NERModel\n"
MINE = "class A({}):\n def _tokenize(s, t): 0"
ONE = "T.from_pretrained('x', num_labels=1)"
SENTENCES = "from sentence_transformers import SentenceTransformer as S\nS('all-MiniLM-L6-v2')"


@for_each(
    "code name says",
    ("from official.nlp.albert import configs as c\nc.AlbertConfig()", "AlbertConfig", "-alone"),
    ("from albert import modeling\nmodeling.AlbertConfig()", "AlbertConfig", "-alone"),
    (BERT4KERAS + "b(model='albert')", "model=", "-alone"),
    (BERT4KERAS + "b(application='unilm')", "application=unilm", "-generates no text"),
    (BERT4KERAS + "b(keep_tokens=k)", "keep_tokens=", "-vocabulary"),
    ("import bert4keras as b\nb.tokenizers.load_vocab(p, simplified=True)", SIMPLE, "-vocabulary"),
    (HF + "TFAutoModel as A\nA.from_pretrained('roberta-base')", "roberta-base", "-alone"),
    (QA + "tokenizer.encode('the [MASK].')", "the [MASK].", "special_tokens_in_text=True"),
    (QA + "f'the {tokenizer.mask_token}'", "mask_token", "special_tokens_in_text=True"),
    (QA + MINE.format("BertTokenizer"), "BertTokenizer._tokenize", "-rules"),
    (KERAS_BERT + MINE.format("Tokenizer"), "Tokenizer._tokenize", "-rules"),
    (TAGGER + "T.from_pretrained('x', num_labels=1)", "num_labels=", "bert_tf.BertTagger"),
    (TAGGER.replace("Token", "Sequence") + ONE, "num_labels=", "bert_tf.BertRegressor"),
    (QA + "import keras\nmetric.reset_states()", ".reset_states", "reset_state()"),
    (QA + "import keras\nkeras.Input(shape=26)", "shape=", "(26,)"),
    (QA + "from keras.layers import Input\nInput(26)", "shape=", "(26,)"),
    (QA + "import keras2onnx as k\nk.convert_keras(m)", "convert_keras", "export_model"),
    ("import bert\nb = bert.BertModelLayer.from_params(p)\nb(ids)", "b()", "a dict"),
    (GARDEN + "x, _ = n.BertEncoder()([i, m, t])", "[0]", "sequence_output"),
    (GARDEN + "e = n.BertEncoder()\ne([i, m, t])", "inputs by position", "one dict"),
    ("from ktrain import text\ntext.text_classifier('bert')", "text_classifier", "Classifier"),
    (SENTENCES, "SentenceTransformer", "bert_tf.BertSentenceEncoder"),
    (SENTENCES, "all-MiniLM-L6-v2", "sentence-transformers/"),
    (NER + "NERModel()", "NERModel", "bert_tf.BertTagger"),
    (NER + "NERModel('roberta', 'roberta-base')", "roberta-base", "-BERT's encoder alone"),
    ("from bert_serving.client import BertClient\nBertClient()", "BertClient", "embed"),
    ("from clip_client import Client\nClient('x')", "Client", "-CLIP is no BERT"),
)
def test_other_libraries_and_models(scanned, code, name, says):
    """After a "-" the reason why there is no equivalent."""
    _, report = scanned(code)
    rows = [finding.row for finding in report.findings if finding.name == name]
    assert len(rows) == 1
    said = rows[0].because if says.startswith("-") else rows[0].instead
    assert re.search(says.removeprefix("-"), said)


@for_each(
    "code",
    "self.logits(x); self.logits = 1; df['logits']; tokens.decode('utf8')",
    "threshold = -100; plt.ylim(-100, 100)",
    "other = build(x)\nother(x)[0]; rows[0]",
    "import keras\nkeras.Model(i, o)(x)[0]; model.save('m.keras'); plt.save('x')",
    "import keras\nmodel.save_weights('m.weights.h5'); keras.optimizers.Adam(learning_rate=1)",
    "import tensorflow as tf\ntf.io.gfile.GFile('x'); tf.train.Checkpoint()",
    "load_tokenizer(x); get_bert_tokenizer(x); Mine.load_model('folder')",
    "Conv1D(8, 3, padding='same'); f(max_length=3, labels=y)",
    "import keras\nkeras.Input((26,)); keras.Input(shape=(26,)); '[MASK]'",
)
def test_false_alarms(scanned, code):
    names = [finding.name for finding in scanned(QA + code)[1].findings]
    assert names == [finding.name for finding in scanned(QA)[1].findings]


def test_what_is_not_known(scanned):
    _, report = scanned("import transformers as t\ngetattr(t, name)\nt.nothing_known\n")
    assert [finding.name for finding in report.findings] == ["getattr", "nothing_known"]
    assert report.known == 0
    lines, report = scanned("python run_squad.py --of_a_fork=1\n", "run.sh")
    assert lines == {"run_squad.py": ["1"], "--of_a_fork": ["1"]} and report.known == 1
    _, report = scanned("x = -1" + " + 1" * 600 + "\n")
    assert "script.py nests expressions too deeply" in report.unread[0]


@for_each(
    "name code",
    ("script.py", "model.compile('adam'); x = -100; d['input_ids']"),
    ("script.py", "f.encode_plus(return_tensors='tf')"),
    ("script.py", "import tokenization\ntokenization.of_theirs()"),
    ("script.py", "import tensorflow as tf\ntf.keras.layers.Dense(1); tf.Session()"),
    ("script.py", "from mine.tokenization import of_mine\nof_mine()"),
    ("other.yaml", "task: build\nsteps: 3\n"),
)
def test_code_of_nobody_else(scanned, name, code):
    """Without the libraries these are somebody else's methods, numbers, strings and modules."""
    assert scanned(code, name)[0] == {}


def test_copies_of_the_original_in_packages(scanned):
    """But in PyTorch's code, whose packages have modules of these names, too."""
    code = (
        "from models.bert import tokenization\n"
        "from .bert.modeling import BertConfig\n"
        "import lib.optimization as opt\n"
        "from ..modeling import *\n"
        "tokenization.FullTokenizer('v'), BertConfig, opt.create_optimizer, transformer_model()\n"
    )
    names = ["FullTokenizer", "BertConfig", "create_optimizer", "transformer_model"]
    assert scanned(code)[0] == {name: ["5"] for name in names}
    assert scanned("import torch\n" + code)[0] == {}


def test_a_notebook(scanned):
    cells = [
        {"cell_type": "markdown", "source": ["import transformers"]},
        {"cell_type": "code", "source": ["%%time\n", "!pip i x\n", "import keras_nlp as k\n"]},
        {"cell_type": "code", "source": "files = !ls\nif files:\n    %cd x\nk.models.BertBackbone"},
        {"cell_type": "code", "source": "!python run_squad.py \\\n  --doc_stride=128\nk?\n"},
        {"cell_type": "code", "source": "print 'Python 2'\n"},
        {"cell_type": "code", "source": "%%bash\npython bert/run_classifier.py --task_name=cola\n"},
    ]
    locations, report = scanned(json.dumps({"cells": cells}), "notebook.ipynb")
    assert locations == {
        "BertBackbone": ["cell 3:4"],
        "run_squad.py": ["cell 4:1"],
        "--doc_stride": ["cell 4:2"],
        "run_classifier.py": ["cell 6:2"],
        "--task_name": ["cell 6:2"],
    }
    assert len(report.unread) == 1
    assert "cell 5:1 is no Python 3" in report.unread[0]


def test_a_markdown_page(scanned):
    locations, report = scanned(
        "import transformers\n\n```python\nfrom transformers import TFBertModel\n```\n"
        "- in a list:\n\n  ```py\n  encoder = TFBertModel(c)\n  ```\n\n"
        "```\n>>> encoder(x)[0]\n[[1, 2] from numpy import\n```\n```\nimport of a page\n```\n"
        "~~~ bash\n$ python run_squad.py --doc_stride 1\n~~~\n"
        "```python\nprint 'Python 2'\n```\n",
        "page.md",
    )
    script = {"run_squad.py": ["20"], "--doc_stride": ["20"]}
    assert locations == {"TFBertModel": ["9"], "[0]": ["13"], **script}
    assert "page.md:23 is no Python 3" in report.unread[0]


def test_a_folder(tmp_path):
    for name in ("a.py", "b/c.py", ".hidden/d.py", "venv/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("from transformers import TFBertModel\n")
    (tmp_path / "bad.ipynb").write_text("[]")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    report = scan(tmp_path)
    found = [finding.locations for finding in report.findings]
    assert found == [[f"{tmp_path / name}:1"] for name in ("a.py", "b/c.py")]
    assert report.files == 3
    assert "bad.ipynb is no notebook" in report.unread[0]
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with pytest.raises(InputError, match="holds no file to read"):
        (tmp_path / "empty").mkdir()
        scan(tmp_path / "empty")
    refused("is no notebook", scan, tmp_path / "bad.ipynb")


def test_nothing_is_run(tmp_path, scanned):
    scanned(f"import transformers\nopen({str(tmp_path / 'made')!r}, 'w')\n")
    assert not (tmp_path / "made").exists()
