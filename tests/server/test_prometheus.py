import json
import math
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests
import yaml
from cluster import free_ports
from credential_files import write_certificate
from peer_programs import find_peer
from running_server import running

pytestmark = [
    pytest.mark.slow,  # two scrapes, a second apart, and more
    pytest.mark.peer("prometheus"),
    pytest.mark.peer("promtool"),
]

SERVING = Path(__file__).parents[2] / "recipes" / "serving"
TOKEN = "a-token"


def annotations() -> dict[str, str]:
    """How Prometheus finds the metrics of a pod of the manifest."""
    deployment = next(yaml.safe_load_all((SERVING / "kubernetes.yaml").read_text()))
    return deployment["spec"]["template"]["metadata"]["annotations"]


def queries() -> list[str]:
    """The queries of Grafana's board, over the last seconds."""
    board = json.loads((SERVING / "grafana.json").read_text())
    targets = [target for panel in board["panels"] for target in panel["targets"]]
    return [target["expr"].replace("$__rate_interval", "10s") for target in targets]


@contextmanager
def prometheus(folder: Path, scrape: dict) -> Iterator[str]:
    """Prometheus with one job, which it scrapes every second; its URL."""
    settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(settings))
    checked = promtool("check", "config", folder / "prometheus.yml")
    assert checked.returncode == 0, checked.stderr
    address = f"127.0.0.1:{free_ports(1)[0]}"
    files = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    command = [find_peer("prometheus"), *files, f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://{address}"
    finally:
        process.kill()
        process.wait()


def promtool(*arguments: object, text: str | None = None) -> subprocess.CompletedProcess:
    command = [find_peer("promtool"), *map(str, arguments)]
    return subprocess.run(command, input=text, capture_output=True, text=True)


def query(prometheus: str, expression: str) -> list[float]:
    """The numbers that a query has now."""
    parameters = {"query": expression}
    try:
        answer = requests.get(f"{prometheus}/api/v1/query", parameters, timeout=10)
    except requests.ConnectionError:  # it has not started yet
        return []
    assert answer.ok, (expression, answer.text)
    return [float(row["value"][1]) for row in answer.json()["data"]["result"]]


def test_prometheus_scrapes_a_server(toys, tmp_path):
    certificate, key = write_certificate(tmp_path)
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    guards = [f"--tls_certificate={certificate}", f"--tls_key={key}"]
    with running(toys, f"--token_file={tmp_path / 'tokens'}", *guards) as (port, _):
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {TOKEN}"
        session.verify, session.trust_env = str(certificate), False
        server = f"https://127.0.0.1:{port}"

        scraped = {name.removeprefix("prometheus.io/"): x for name, x in annotations().items()}
        (tmp_path / "token").write_text(TOKEN)
        scrape = {"scheme": scraped["scheme"], "metrics_path": scraped["path"]}
        scrape |= {"job_name": "bert-tf", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        scrape["authorization"] = {"credentials_file": str(tmp_path / "token")}
        scrape["tls_config"] = {"ca_file": str(certificate)}
        with prometheus(tmp_path, scrape) as url:
            deadline = time.monotonic() + 60
            missing = ["min_over_time(up[5m]) == 1", *queries()]
            while missing:  # a rate needs two scrapes with requests between them
                assert time.monotonic() < deadline, (missing, (tmp_path / "log").read_text())
                for instances, key in ((["a", "b"], "predictions"), ([1], "error")):
                    body = {"instances": instances}
                    assert key in session.post(f"{server}/v1/models/toy:predict", json=body).json()
                time.sleep(0.5)
                missing = [x for x in missing if not _has_numbers(query(url, x))]
        _check_lint(session.get(f"{server}{scraped['path']}").text)


def _has_numbers(values: list[float]) -> bool:
    return not all(map(math.isnan, values))  # as is a quantile of nothing


def _check_lint(text: str) -> None:
    """`promtool` complains of names that TensorFlow Serving chose, of no other."""
    complaints = promtool("check", "metrics", text=text).stderr.splitlines()
    ours = [line for line in complaints if not re.match(r":tensorflow:", line)]
    assert ours == []
    assert complaints  # it has read them
