import dataclasses
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cases import for_each, refused
from command_line import words
from huggingface_hub import constants, file_download, snapshot_download
from safetensors.numpy import save
from tiny import tiny_config

import bert_tf
from bert_tf import BertTokenizer, cli
from bert_tf.checkpoints.hub import find_model
from bert_tf.commands.early_checks import open_models
from bert_tf.commands.ensemble import Options as EnsembleOptions
from bert_tf.commands.finetune import Options as FinetuningOptions
from bert_tf.errors import InputError

COMMIT, OLD = "0123456789abcdef" * 2 + "01234567", "fedcba9876543210" * 2 + "fedcba98"
NAME = "acme/bert-tiny"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "film", "a"]
FILES = {
    "config.json": b'{"model_type": "bert", "hidden_size": 8}',
    "vocab.txt": "\n".join(PIECES).encode(),
    "tokenizer_config.json": b'{"do_lower_case": false}',
    "model.safetensors": save({"embeddings.x": np.arange(50_000, dtype=np.float32)}),
    "pytorch_model.bin": b"a pickle",
    "onnx/model.safetensors": b"of another runtime",
    "README.md": b"---\nlicense: mit\n---",
}
OF_BERT = {"config.json", "vocab.txt", "tokenizer_config.json", "model.safetensors"}


class Hub(ThreadingHTTPServer):
    """A hub on this machine, with one model; its files and faults can be changed."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files = dict(FILES)
        self.commits = {"main": COMMIT, "v1": OLD}
        self.config: dict[str, Any] = {"model_type": "bert"}
        self.faults: dict[str, Any] = {}  # part of a path -> answer
        self.requests: list[str] = []

    def info(self, revision: str) -> dict[str, Any]:
        siblings = [{"rfilename": name} for name in self.files]
        sha = self.commits.get(revision, revision)
        return {"id": NAME, "sha": sha, "siblings": siblings, "config": self.config}

    def tree(self) -> list[dict[str, Any]]:
        files = self.files.items()
        return [{"type": "file", "path": x, "size": len(y), "oid": hash_of(y)} for x, y in files]

    @property
    def downloads(self) -> list[str]:
        lines = [line for line in self.requests if line.startswith(f"GET /{NAME}/")]
        return list(dict.fromkeys(line.rpartition("/")[2] for line in lines))


def hash_of(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, content: Any = b"", cut: bool = False, **headers: str) -> None:
        if not isinstance(content, bytes):
            content, headers = json.dumps(content).encode(), {"Content-Type": "application/json"}
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET" and not cut:
            self.wfile.write(content)
        self.close_connection = cut

    def do_GET(self) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        hub.requests.append(f"{self.command} {path}")
        fault = next((fault for part, fault in hub.faults.items() if part in path), None)
        revision = path.rpartition("/")[2].replace("%2F", "/")
        if isinstance(fault, int):
            self.answer(fault)
        elif isinstance(fault, tuple):
            self.answer(fault[0], **{"X-Error-Code": fault[1]})
        elif path.startswith(f"/api/models/{NAME}/revision/"):
            if revision in hub.commits or revision in hub.commits.values():
                self.answer(200, hub.info(revision))
            else:
                self.answer(404, **{"X-Error-Code": "RevisionNotFound"})
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            self.answer(200, hub.tree())
        elif path.startswith(f"/{NAME}/resolve/"):
            revision, name = path.removeprefix(f"/{NAME}/resolve/").split("/", 1)
            commit, content = hub.commits.get(revision, revision), hub.files[name]
            headers = {"X-Repo-Commit": commit, "ETag": f'"{hash_of(content)}"'}
            self.answer(200, content, cut=fault == "cut", **headers)
        else:  # as the hub answers those who have not logged in
            self.answer(401)

    do_HEAD = do_GET


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory and an empty cache, and no waiting between retries."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "here"


@pytest.fixture
def hub(here, monkeypatch):
    monkeypatch.setattr(file_download, "time", SimpleNamespace(sleep=lambda seconds: None))
    hub = Hub()
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}).start()
    yield hub
    hub.shutdown()
    hub.server_close()


@pytest.fixture
def cached(here, monkeypatch):
    """A model in the cache, as huggingface_hub leaves it; every request would fail."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    model = here.parent / "hub" / "models--acme--bert-tiny"
    for commit in (COMMIT, OLD):
        snapshot = model / "snapshots" / commit
        snapshot.mkdir(parents=True)
        for name in OF_BERT:
            (snapshot / name).write_bytes(FILES[name])
    (model / "refs" / "refs" / "pr").mkdir(parents=True)
    (model / "refs" / "main").write_text(COMMIT)
    (model / "refs" / "refs" / "pr" / "1").write_text(OLD)
    return model / "snapshots"


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_cached_model_needs_no_network_and_a_local_folder_wins(cached, here):
    for name in (NAME, f"{NAME}@main"):
        assert find_model(name) == cached / COMMIT
    for name in (f"{NAME}@{OLD}", f"hf://{NAME}@refs/pr/1"):
        assert find_model(name) == cached / OLD
    # As transformers with TensorFlow leaves it.
    (cached / COMMIT / "model.safetensors").rename(cached / COMMIT / "tf_model.h5")
    assert find_model(NAME) == cached / COMMIT
    (here / NAME).mkdir(parents=True)
    assert find_model(NAME) == Path(NAME)
    assert find_model(f"hf://{NAME}") == cached / COMMIT


def test_a_name_without_an_organization_is_found_in_the_cache_alone(cached):
    cached.parent.rename(cached.parents[1] / "models--bert-tiny")
    cached = cached.parents[1] / "models--bert-tiny" / "snapshots"
    assert find_model("bert-tiny") == cached / COMMIT
    (cached / COMMIT / "vocab.txt").unlink()
    refused(r"bert-tiny is .* in the Hugging Face cache without voc", find_model, "bert-tiny")
    assert find_model("bert-small") == Path("bert-small")


def test_a_snapshot_that_lacks_a_file_is_no_model(cached, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    folder = cached / COMMIT
    for gone in ("config.json", "model.safetensors", "vocab.txt"):
        (folder / gone).unlink()
        refused(rf"in the Hugging Face cache without {gone}, and", find_model, NAME)
        (folder / gone).write_bytes(FILES[gone])
    # Nor one that lacks some of the weights of its index.
    first = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors").rename(folder / first)
    index = {"weight_map": {"a": first, "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    refused(r"cache without model-00002-of-00002\.safetensors", find_model, NAME)
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"")
    assert find_model(NAME) == folder


def test_a_path_is_not_asked_from_the_hub(hub, here):
    (here / "models").mkdir()
    paths = ["models/tyni", "model/tiny", "tyni", "/no/such", "./acme/tiny", "a/b/c", "acme/../b"]
    for path in [*paths, "acme/b@../../x", "ac me/b", "acme/b\0", Path(NAME)]:
        assert find_model(path) == Path(path)
    assert not hub.requests


def test_a_model_is_downloaded_and_cached(hub):
    folder = find_model(NAME)
    assert folder.name == COMMIT and names(folder) == OF_BERT
    assert all((folder / name).read_bytes() == FILES[name] for name in OF_BERT)
    assert hub.downloads[-1] == "config.json" and len(hub.downloads) == len(OF_BERT)
    hub.requests.clear()
    assert find_model(NAME) == folder
    assert not hub.requests
    patterns = sorted(OF_BERT)
    assert str(folder) == snapshot_download(NAME, allow_patterns=patterns, local_files_only=True)
    assert find_model(f"{NAME}@v1").name == OLD


def test_all_files_of_a_model_are_downloaded(hub):
    hub.config |= {"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"]}
    content = hub.files.pop("model.safetensors")
    shards = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = {"weight_map": dict(zip("ab", shards, strict=True))}
    more = dict.fromkeys(shards, content)
    more["model.safetensors.index.json"] = json.dumps(index).encode()
    names_of_more = words("modules 1_Pooling/config sentence_bert_config added_tokens")
    names_of_more += ["config_sentence_transformers", "special_tokens_map"]
    more |= {f"{name}.json": b"{}" for name in names_of_more}
    hub.files |= more
    assert names(find_model(NAME)) == OF_BERT - {"model.safetensors"} | more.keys()


def test_what_other_programs_left_out_is_downloaded(hub, cached, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    (cached / COMMIT / "model.safetensors").unlink()
    assert find_model(NAME) == cached / COMMIT
    assert hub.downloads == ["model.safetensors"]


@for_each(
    "fault message",
    ({f"/api/models/{NAME}": 401}, "for a private or gated model log in"),
    ({f"/api/models/{NAME}": 503}, "(HfHubHTTPError: Server error '503"),
    ({"resolve": (403, "GatedRepo")}, "(GatedRepoError: 403"),
    ({"/model.safetensors": "cut"}, "cannot be downloaded from http://"),
)
def test_a_download_that_fails_is_one_line_and_leaves_no_model(hub, fault, message):
    hub.faults |= fault
    refused(re.escape(message), find_model, NAME)
    hub.faults.clear()
    folder = find_model(NAME)
    assert all((folder / name).read_bytes() == FILES[name] for name in OF_BERT)


def without(*names):
    return lambda hub: [hub.files.pop(name) for name in names]


@for_each(
    "change message",
    (without("model.safetensors"), "or download config.json, vocab.txt and pytorch_model.bin"),
    (without("model.safetensors", "pytorch_model.bin"), "give a repository or a revision with"),
    (without("config.json"), "holds no config.json ("),
    (lambda hub: hub.config.update(model_type="roberta"), "is a model of type roberta"),
    (lambda hub: hub.config.update(architectures=["ElectraModel"]), "is ['ElectraModel'], but"),
    (lambda hub: hub.commits.pop("main"), "(RevisionNotFoundError: 404"),
)
def test_a_repository_without_a_bert_is_refused_before_any_file(hub, change, message):
    change(hub)
    refused(re.escape(message), find_model, NAME)
    assert not hub.downloads


def test_a_repository_that_changes_meanwhile_is_refused(hub):
    tree = hub.tree

    def moved():
        hub.commits["main"] = OLD
        return tree()

    hub.tree = moved
    refused("or changed while it was downloaded: try again", find_model, NAME)


def test_without_a_network_the_error_says_how_to_get_the_files(here, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    begun = f"{NAME}@v1 is no folder here, is not cached, and "
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here))
    (here / "models--acme--bert-tiny-2").mkdir()
    for is_offline in (False, True):
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", is_offline)
        with pytest.raises(InputError, match=begun) as error:
            find_model(f"{NAME}@v1")
        cause = "HF_HUB_OFFLINE forbids" if is_offline else "cannot be downloaded from http://127"
        assert cause in str(error.value) and len(str(error.value).split()) < 40
        near, by_hand = error.value.__notes__
        assert near == "Did you mean acme/bert-tiny-2, which is cached?"
        assert f"from http://127.0.0.1:9/{NAME}/tree/v1 into a folder, and give that fo" in by_hand


def test_options_that_hold_models_get_their_folders(cached):
    options = FinetuningOptions(model=NAME, train="train.tsv", output="out")
    assert list(open_models(options)) == [cached / COMMIT]
    assert options.model == str(cached / COMMIT) and options.train == "train.tsv"
    members = EnsembleOptions(models=["./runs/best", f"{NAME}@{OLD}"], data="dev.tsv")
    assert list(open_models(members)) == [cached / OLD]
    assert members.models == ["./runs/best", str(cached / OLD)]


def test_every_command_that_reads_a_model_takes_a_name():
    marked, read = set(), set()
    for command in cli.COMMANDS:
        options = cli.command_named(command).options
        for field in dataclasses.fields(options):
            if field.metadata.get("model"):
                marked.add(f"{command} {field.name}")
            names = ("model", "models", "source", "teacher", "extend")
            if field.metadata.get("path") and field.name in names:
                read.add(f"{command} {field.name}")
    marked.remove("shards tokenizer")  # a folder of a tokenizer alone will do
    assert {"finetune model", "convert source", "ensemble models"} < read == marked


def test_functions_and_commands_take_a_name(hub, here, call):
    config = tiny_config(len(PIECES))
    model = bert_tf.BertClassifier(config, labels=["bad", "good"], seed=1)
    folder = here.parent / "saved"
    bert_tf.save_model(model, folder, BertTokenizer(PIECES))
    hub.files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert bert_tf.BertClassifier.from_preset(NAME).labels == ["bad", "good"]
    with pytest.raises(InputError, match="tiny: no such folder: check the path, or for a model of"):
        bert_tf.BertClassifier.from_preset("tiny")
    assert f"snapshots/{COMMIT}" in call(f"convert {NAME} out")[1]
    assert names(here / "out") == OF_BERT
    answer, _ = call("predict --text", "a good film", model=NAME)
    assert json.loads(answer)["label"] in ("bad", "good")


def test_a_command_tells_of_the_hub_where_a_path_is_missing(here, call):
    (here / "models").mkdir()
    for name in ("other", "models/other"):
        shown = call.refused("features --data x.txt --output x.npy", model=name)
        assert f"--model {name}: no such file or folder; check the path, or for a model" in shown
        assert f"give hf://{name}" in shown
