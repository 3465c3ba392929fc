import socket
import sys

import pytest
from cases import for_each

from bert_tf.cli import main
from bert_tf.errors import InputError


@pytest.fixture
def models(tmp_path):
    (tmp_path / "models" / "half_plus_three" / "123").mkdir(parents=True)
    return str(tmp_path / "models")


@pytest.fixture
def without_tensorflow(monkeypatch):
    def stop(**_):
        raise InputError("TensorFlow would be imported")

    monkeypatch.setattr("bert_tf.cli.import_tensorflow", stop)


def test_serve_says_at_once_what_it_loads_and_lacks(models, call, without_tensorflow, monkeypatch):
    loading = f"Loading TensorFlow, then the models of {models}: half_plus_three"
    assert "TensorFlow would be imported" in call.refused("serve", models, announced=loading)
    assert "none cannot be read" in call.refused("serve", models, token_file="none")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'grpcio>=1.76'" in call.refused("serve", models)


@for_each(
    "arguments message",
    (["gone"], "gone: no such folder: give the one that bert-tf export writes to"),
    ([".", "--tls_key", "k"], "give --tls_certificate and --tls_key"),
    ([".", "--host", "192.0.2.1"], "192.0.2.1 is no address of this machine"),
    ([".", "--host", "no such host"], "no such host is no address of this machine"),
)
def test_options_that_cannot_be_used(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["serve", *arguments, "--rest_port=0", "--grpc_port=0"]) == 2
    assert message in capsys.readouterr().err


def test_a_port_in_use_and_an_environment_that_has_no_port(capsys, tmp_path, monkeypatch):
    def refused(message, *ports):
        assert main(["serve", str(tmp_path), *ports]) == 2
        assert message in capsys.readouterr().err

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("REST_PORT", str(port))
        refused(f"port {port} of 127.0.0.1 is in use: give another --rest_port, or 0")
        refused("give another --grpc_port", "--rest_port=0", f"--grpc_port={port}")
    monkeypatch.setenv("REST_PORT", "http")
    refused("$REST_PORT is 'http': give a port, or --rest_port")
