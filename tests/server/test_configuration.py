from cases import refused

from bert_tf.server import configuration


def test_a_monitoring_config_moves_the_metrics_or_switches_them_off(tmp_path):
    file = tmp_path / "monitoring.config"
    for text, path in (
        ('prometheus_config { enable: true path: "/metrics" }', "/metrics"),
        ("prometheus_config { enable: true }", "/default"),
        ("prometheus_config { enable: false }", None),
        ("", None),
    ):
        file.write_text(text)
        assert configuration.read_metrics_path(file, "/default") == path
    for text in ("prometheus {", 'prometheus_config { enable: true path: "metrics" }'):
        file.write_text(text)
        refused("configures no metrics", configuration.read_metrics_path, file, "/default")


def test_batching_parameters_are_read_from_the_official_format(tmp_path):
    file = tmp_path / "batching.config"
    file.write_text(
        "max_batch_size { value: 8 } batch_timeout_micros { value: 0 }\n"
        "num_batch_threads { value: 2 } pad_variable_length_inputs: true # a comment\n"
        'allowed_batch_sizes: 4 allowed_batch_sizes: 8 thread_pool_name { value: "t" }'
    )
    assert configuration.read_batching_parameters(
        file, configuration.BatchingParameters(max_enqueued_batches=5)
    ) == (configuration.BatchingParameters(8, 0, 5, 2, (4, 8)))
    for text in (
        "max_batch_size: 8",
        "max_batch_size { value: 0 }",
        "unknown { value: 1 }",
        "batch_timeout_micros { value: -1 }",
        "max_batch_size { value: 8 } allowed_batch_sizes: 4",
        "\0",
    ):
        file.write_text(text)
        refused("has no batching parameters", configuration.read_batching_parameters, file)
