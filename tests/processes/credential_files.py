import subprocess
from pathlib import Path

from bert_tf.server.credentials import Tokens


def write_certificate(folder: Path) -> tuple[Path, Path]:
    (folder / "extensions").write_text("subjectAltName=IP:127.0.0.1\n")
    for command in (
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost "
        "-keyout key.pem -out request.pem",
        "x509 -req -in request.pem -signkey key.pem -days 2 -extfile extensions -out chain.pem",
    ):
        command = ["openssl", *command.split()]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "chain.pem", folder / "key.pem"


def tokens_of(folder: Path, text: str) -> Tokens:
    (folder / "tokens").write_text(text, encoding="utf-8")
    return Tokens(folder / "tokens")
