import json
import os
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from cases import for_each
from credential_files import write_certificate
from prometheus_client.parser import text_string_to_metric_families

from bert_tf.cli import read_options
from bert_tf.server.credentials import Certificate
from bert_tf.server.monitoring import Metrics

REPOSITORY = Path(__file__).parents[1]
SERVING = REPOSITORY / "recipes" / "serving"


def instructions() -> list[tuple[str, str]]:
    text = (REPOSITORY / "Dockerfile").read_text()
    return re.findall(r"^([A-Z]+) (.*)$", text, re.M)


def test_the_image_is_built_from_what_the_ignore_file_lets_in():
    listed = (REPOSITORY / ".dockerignore").read_text().splitlines()
    copies = [words for name, words in instructions() if name == "COPY"]
    own = [words.split()[:-1] for words in copies if not words.startswith("--from")]
    copied = [source for sources in own for source in sources]
    assert copied and all(f"!{source}" in listed for source in copied)
    assert all((REPOSITORY / source).exists() for source in copied)


def test_the_image_runs_a_command_that_there_is_and_is_no_root():
    found = dict(instructions())  # the last of each name
    arguments = json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"])
    assert arguments[0] == "bert-tf"
    options = read_options("serve", arguments[1:])
    assert (options.models, options.host) == ("/models", "0.0.0.0")
    assert int(found["USER"].split(":")[0]) > 0


@for_each("has_tls", False, True)
def test_the_health_check_asks_servers_with_and_without_tls(has_tls, tmp_path):
    class Probe(BaseHTTPRequestHandler):
        status = 200

        def do_GET(self) -> None:
            self.send_response(self.status if self.path == "/readyz" else 404)
            self.end_headers()

    command = dict(instructions())["HEALTHCHECK"].partition(" CMD ")[2]
    with HTTPServer(("127.0.0.1", 0), Probe) as server:
        if has_tls:
            tls = Certificate(*write_certificate(tmp_path))
            server.socket = tls.context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        command = command.replace(":8501/", f":{server.server_port}/")
        ready = subprocess.run(["sh", "-c", command], capture_output=True).returncode
        Probe.status = 503
        loading = subprocess.run(["sh", "-c", command], capture_output=True).returncode
        server.shutdown()
    assert (ready, loading) == (0, 1)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(
    "BERT_TF_CONTAINER" not in os.environ,
    reason="downloads the image's packages, for minutes: set BERT_TF_CONTAINER=1",
)
def test_its_commands_make_a_server_that_writes_nothing(tmp_path):
    root = tmp_path / "image"

    def there(words: str) -> str:
        return re.sub(r"(?<![\w/.])/(?=opt|source|wheels)", f"{root}/", words)

    for name, words in instructions():
        if name == "COPY" and not words.startswith("--from"):
            *sources, target = words.split()
            folder = Path(there(target))
            target = folder if len(sources) > 1 else folder.parent
            target.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-r", *sources, target], cwd=REPOSITORY, check=True)
        elif name == "RUN":
            command = there(words.replace("python -m venv", f"{sys.executable} -m venv"))
            subprocess.run(["bash", "-ec", command], check=True, cwd=tmp_path)
    (tmp_path / "models").mkdir()
    save = (
        "import tensorflow as tf\n"
        "class Toy(tf.Module):\n"
        "    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, 'text')])\n"
        "    def size(self, text):\n"
        "        return {'size': tf.strings.length(text)}\n"
        f"toy = Toy()\ntf.saved_model.save(toy, '{tmp_path}/models/toy/1', signatures=toy.size)\n"
    )
    python = root / "opt" / "bert-tf" / "bin" / "python"
    subprocess.run([python, "-c", save], check=True, capture_output=True)
    before = _listing(tmp_path)
    tmp_path.chmod(0o755)
    for folder in tmp_path.parents:
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    environment = {"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": "/nonexistent"}
    environment |= dict.fromkeys(("PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED"), "1")
    # A Python in root's home, as pyenv installs it, is for root alone.
    is_for_all = all(folder.stat().st_mode & 1 for folder in Path(sys.executable).resolve().parents)
    changes_user = os.getuid() == 0 and is_for_all
    user = {"user": 10001, "group": 10001, "extra_groups": []} if changes_user else {}
    command = ["bert-tf", "serve", tmp_path / "models", "--rest_port=0", "--grpc_port=0"]
    how = {"env": environment, "cwd": "/", "stderr": subprocess.PIPE, "text": True}
    server = subprocess.Popen(command, **how, **user)
    try:
        lines = []
        while not (found := re.search(r"REST: (http://[^/]+)/", "".join(lines))):
            line = server.stderr.readline()
            assert line, "".join(lines)
            lines.append(line)
        assert urllib.request.urlopen(f"{found[1]}/readyz").read() == b"1 of 1 models are ready\n"
        body = json.dumps({"inputs": ["abc"]}).encode()
        answer = urllib.request.urlopen(f"{found[1]}/v1/models/toy:predict", body)
        assert json.load(answer) == {"outputs": [3]}
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
    assert _listing(tmp_path) == before


def _listing(folder: Path) -> dict[Path, int]:
    return {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_the_kubernetes_files_ask_for_what_the_server_has():
    deployment, service, scaler = yaml.safe_load_all((SERVING / "kubernetes.yaml").read_text())
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    options = read_options("serve", ["serve", *container["args"]])
    (_, drained) = container["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["spec"]["terminationGracePeriodSeconds"] >= 2 * options.deadline + 5 + int(drained)
    assert options.tls_key and pod["metadata"]["annotations"]["prometheus.io/scheme"] == "https"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"grpc": 8500, "rest": 8501}
    assert {port["targetPort"] for port in service["spec"]["ports"]} == set(ports)
    probes = {name: each for name, each in container.items() if name.endswith("Probe")}
    paths = {name.removesuffix("Probe"): each["httpGet"]["path"] for name, each in probes.items()}
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}
    (metric,) = scaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in _metrics()


def _metrics() -> set[str]:
    metrics = Metrics()
    text = metrics.render({"m": 0}, {"m": True}).decode()
    return {family.name for family in text_string_to_metric_families(text)}


def test_the_board_shows_metrics_that_there_are():
    board = json.loads((SERVING / "grafana.json").read_text())
    asked = set()
    for panel in board["panels"]:
        for target in panel["targets"]:
            asked |= set(re.findall(r"(?:bert_tf|process|:tensorflow:)[\w:]+", target["expr"]))
    known = _metrics()
    assert len(asked) >= 10
    for name in asked:
        family = re.sub(r"_(total|bucket)$", "", name)
        assert {name, family} & known, name
