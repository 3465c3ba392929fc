import pytest

from bert_tf.errors import InputError
from bert_tf.server.configuration import read_metrics_path


def test_a_monitoring_config_moves_the_metrics_or_switches_them_off(tmp_path):
    file = tmp_path / "monitoring.config"
    for text, path in (
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ("prometheus_config { enable: true }", "/default"),
        ("prometheus_config { enable: false }", None),
        ("", None),
    ):
        file.write_text(text)
        assert read_metrics_path(file, "/default") == path
    for text in ("prometheus {", 'prometheus_config { enable: true path: "metrics" }'):
        file.write_text(text)
        with pytest.raises(InputError, match="configures no metrics"):
            read_metrics_path(file, "/default")
