"""`bert-tf serve`: its options, and what it refuses before models are loaded."""

import socket
import sys

import pytest

from bert_tf.cli import main
from bert_tf.commands.serve import translated
from bert_tf.errors import InputError


@pytest.fixture
def models(tmp_path):
    """A folder of one model, as far as a look at its folders shows."""
    (tmp_path / "models" / "half_plus_three" / "123").mkdir(parents=True)
    return str(tmp_path / "models")


@pytest.fixture
def without_tensorflow(monkeypatch):
    """Ends a command before it imports TensorFlow."""

    def stop(**_):
        raise InputError("TensorFlow would be imported")

    monkeypatch.setattr("bert_tf.cli.import_tensorflow", stop)


def test_serve_says_at_once_what_it_loads(models, call, without_tensorflow):
    loading = f"Loading TensorFlow, then the models of {models}: half_plus_three"
    assert "TensorFlow would be imported" in call.refused("serve", models, announced=loading)
    assert "none cannot be read" in call.refused("serve", models, token_file="none")


def test_serve_without_its_packages(models, call, without_tensorflow, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'grpcio>=1.76'" in call.refused("serve", models)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gone"], "gone: no such folder: give the one that bert-tf export writes to"),
        ([".", "--tls_key", "k"], "give --tls_certificate and --tls_key"),
        ([".", "--access_log", "none/log"], "none/log cannot be written (No such file or dir"),
        ([".", "--host", "192.0.2.1"], "192.0.2.1 is no address of this machine"),
        ([".", "--host", "no such host"], "no such host is no address of this machine"),
    ],
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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            "--port=8500 --rest_api_port 8501 --model_name=m --model_base_path=/models/m",
            "--grpc_port=8500 --rest_port=8501 --model_name=m /models/m",
        ),
        ("--model_base_path=/models/m", "/models/m --model_name=default"),
        (
            "--model_config_file=/m/models.config --model_config_file_poll_wait_seconds=60 "
            "--allow_version_labels_for_unavailable_models=true --enable_batching "
            "--monitoring_config_file=/m/monitoring.config --batching_parameters_file=/m/b.config "
            "--enable_per_model_batching_parameters=true --rest_api_timeout_in_ms=1500",
            "/m/models.config --monitoring_config_file=/m/monitoring.config "
            "--batching_parameters_file=/m/b.config --enable_per_model_batching_parameters "
            "--deadline=1.5",
        ),
        ("saved_models --rest_port=1", "saved_models --rest_port=1"),
    ],
)
def test_flags_of_tensorflow_model_server(arguments, expected):
    assert translated(arguments.split()) == expected.split()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--enable_batching=false"], "--enable_batching cannot be switched off"),
        (["--port"], "--port needs a value"),
        (["--rest_api_timeout_in_ms=x"], "x is not a whole number"),
        (["--model_base_path=a", "--model_config_file=b"], "cannot be combined: give one"),
    ],
)
def test_flags_that_this_server_cannot_follow(arguments, message):
    with pytest.raises(InputError, match=message):
        translated(arguments)
