import urllib.request

import tensorflow as tf

from bert_tf.cli import main


def test_tensorboard_serves_a_run(capsys, monkeypatch, tmp_path, call):
    assert "no TensorBoard logs yet" in call.refused("monitor", tmp_path)
    with tf.summary.create_file_writer(str(tmp_path / "logs" / "train")).as_default():
        tf.summary.scalar("loss", 1.0, step=1)
    settings = []

    def look_and_interrupt():
        address = capsys.readouterr().err.split("TensorBoard: ")[1].split()[0]
        with urllib.request.urlopen(f"{address}data/environment") as answer:
            settings.append(answer.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr("bert_tf.commands.monitor.wait_for_interrupt", look_and_interrupt)
    assert main(["monitor", str(tmp_path), "--port", "0"]) == 130
    assert str(tmp_path) in settings[0]
