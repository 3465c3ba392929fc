"""Files of certificates and tokens, for tests of servers."""

import subprocess
from pathlib import Path

from bert_tf.server.credentials import Tokens


def write_certificate(folder: Path, days: int = 2) -> tuple[Path, Path]:
    """A self-signed certificate of 127.0.0.1, and its key; with -1 days it has expired."""
    certificate, key, request = folder / "chain.pem", folder / "key.pem", folder / "request.pem"
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1\n")
    for command in (
        [
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            "/CN=localhost",
            "-keyout",
            key,
            "-out",
            request,
        ],
        [
            "x509",
            "-req",
            "-in",
            request,
            "-signkey",
            key,
            "-days",
            str(days),
            "-extfile",
            extensions,
            "-out",
            certificate,
        ],
    ):
        subprocess.run(["openssl", *command], check=True, capture_output=True)
    return certificate, key


def tokens_of(folder: Path, text: str) -> Tokens:
    """The tokens of a file with this text."""
    (folder / "tokens").write_text(text, encoding="utf-8")
    return Tokens(folder / "tokens")
