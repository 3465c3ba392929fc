import urllib.request

from bert_tf.cli import main


def test_tensorboard_serves_a_run(pretrained, capsys, monkeypatch):
    settings = []

    def look_and_interrupt():
        address = capsys.readouterr().err.split("TensorBoard: ")[1].split()[0]
        with urllib.request.urlopen(f"{address}data/environment") as answer:
            settings.append(answer.read().decode())
        raise KeyboardInterrupt

    monkeypatch.setattr("bert_tf.commands.monitor.wait_for_interrupt", look_and_interrupt)
    assert main(["monitor", str(pretrained), "--port", "0"]) == 130
    assert str(pretrained) in settings[0]


def test_a_folder_without_logs_is_refused(tmp_path, call):
    assert "no TensorBoard logs yet" in call.refused("monitor", tmp_path)
