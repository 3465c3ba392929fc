"""The blocks of the page on other tools, each where its tool is installed."""

import base64
import importlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants
from tiny import tiny_config

from bert_tf import BertClassifier, BertEncoder, BertTokenizer, save_model

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs" / "other-tools.md"
FIRST, *BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "jazz", "wake", "me", "at", "seven"]


@pytest.fixture
def ran(tmp_path, monkeypatch):
    """Runs the first block and the one that imports a tool; returns the block's names."""
    monkeypatch.chdir(tmp_path)
    config = tiny_config(len(PIECES), max_position_embeddings=128)
    save_model(BertEncoder(config, seed=1), tmp_path / "models" / "base", BertTokenizer(PIECES))

    def run(tool):
        if importlib.util.find_spec(tool) is None:
            pytest.skip(f"{tool} is not installed")
        (block,) = (block for block in BLOCKS if re.search(rf"(import|from) {tool}\b", block))
        names = {}
        for code in (FIRST, block):
            exec(compile(code, PAGE.name, "exec"), names)
        return names

    return run


def test_weights_and_biases(ran, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    names = ran("wandb")
    (log,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    for logged in (b"val_accuracy", b"batch/learning_rate"):
        assert logged in log.read_bytes()
    assert len(names["model"].history.history["val_loss"]) == 2


def test_mlflow(ran):
    names = ran("mlflow")
    client = names["mlflow"].MlflowClient()
    experiment = client.get_experiment_by_name("messages").experiment_id
    (run,) = client.search_runs([experiment])
    history = names["model"].history.history
    steps = client.get_metric_history(run.info.run_id, "val_loss")
    assert [step.value for step in steps] == history["val_loss"]
    kept = {Path(file.path).name for file in client.list_artifacts(run.info.run_id, "model")}
    assert {"config.json", "vocab.txt", "model.safetensors", "task.json"} <= kept


class Hub(BaseHTTPRequestHandler):
    """Takes an upload as the hub does, all files within the commit."""

    def log_message(self, *_):
        pass

    def do_POST(self):
        sent = self.rfile.read(int(self.headers["Content-Length"]))
        answer = {"url": "ORG/messages"}
        if "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(sent)["files"]]
            files = [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
            answer = {"files": files}
        elif self.path.endswith("/validate-yaml"):
            self.server.cards.append(json.loads(sent)["content"])
            answer = {"errors": [], "warnings": []}
        elif "/commit/" in self.path:
            for line in sent.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    file = entry["value"]
                    self.server.files[file["path"]] = base64.b64decode(file["content"])
            commit = "0" * 40
            url = f"{constants.ENDPOINT}/ORG/messages/commit/{commit}"
            answer = {"commitUrl": url, "commitOid": commit}
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def do_GET(self):
        self.send_error(404)


def test_the_hugging_face_hub(ran, tmp_path, monkeypatch):
    """The files that arrive are a model, whose card has a header that the hub can read."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        hub.files, hub.cards = {}, []
        url = f"http://127.0.0.1:{hub.server_port}"
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_ENDPOINT", url)
        monkeypatch.setenv("HF_TOKEN", "hf_of_nobody")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            names = ran("huggingface_hub")
        finally:
            hub.shutdown()
            thread.join()
    for name, content in hub.files.items():
        path = tmp_path / "downloaded" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    assert hub.cards and set(hub.cards) == {hub.files["README.md"].decode()}
    card = ModelCard.load(tmp_path / "downloaded" / "README.md")
    header = {"license": "apache-2.0", "language": "en", "library_name": "transformers"}
    assert card.data.to_dict() == {**header, "pipeline_tag": "text-classification"}
    model = BertClassifier.from_preset(tmp_path / "downloaded")
    texts = names["texts"][:2]
    assert model.classify(texts) == names["model"].classify(texts)


def test_apache_beam(ran, tmp_path):
    names = ran("apache_beam")
    texts, answers = names["texts"], names["model"].classify(names["texts"])
    expected = [f"{a['label']}\t{text}" for text, a in zip(texts, answers, strict=True)]
    written = "\n".join(path.read_text() for path in tmp_path.glob("answers*.tsv"))
    assert sorted(filter(None, written.split("\n"))) == sorted(expected)
