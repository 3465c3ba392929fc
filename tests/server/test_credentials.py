"""Tokens and certificates, which are read again when their files change."""

import ssl
import subprocess

import pytest
from credential_files import tokens_of, write_certificate

from bert_tf.errors import InputError
from bert_tf.server.credentials import Certificate


def test_tokens_are_read_again_and_a_bad_file_changes_nothing(tmp_path, caplog):
    tokens = tokens_of(tmp_path, "first\n\n# comment\napp  second\n")
    names = [tokens.name_of(header) for header in ("Bearer first", "bearer  second ", "Bearer x")]
    assert names == ["line 1", "app", None]
    for _ in range(2):
        (tmp_path / "tokens").write_text("a b c\n")
        tokens.refresh()
    assert tokens.name_of("Bearer second") == "app"
    (message,) = caplog.messages
    assert "line 1: write one token, or its name and it" in message
    (tmp_path / "tokens").unlink()
    tokens.refresh()
    assert tokens.name_of("Bearer second") == "app"
    (tmp_path / "tokens").write_text("third\n")
    tokens.refresh()
    assert [tokens.name_of(f"Bearer {token}") for token in ("second", "third")] == [None, "line 1"]


@pytest.mark.parametrize("token", ["", "pässword", "a\x07b"])
def test_a_token_that_no_request_could_show(token, tmp_path):
    with pytest.raises(InputError, match=str(tmp_path)):
        tokens_of(tmp_path, f"{token}\n")


def test_a_certificate_is_read_again_and_a_bad_one_changes_nothing(tmp_path, caplog):
    def shown() -> bytes:
        """The certificate that a client gets now."""
        client = ssl.create_default_context()
        client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        sides = [client.wrap_bio(there, back), tls.context.wrap_bio(back, there, server_side=True)]
        for side in sides * 3:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
        return sides[0].getpeercert(binary_form=True)

    paths = write_certificate(tmp_path)
    tls = Certificate(*paths)
    first = shown()
    write_certificate(tmp_path)
    tls.refresh()
    renewed = shown()
    assert renewed != first
    for _ in range(2):
        paths[1].write_text("no key")
        tls.refresh()
    assert shown() == renewed
    (message,) = caplog.messages
    assert "are no certificate and its key" in message


def test_keys_that_cannot_be_used(tmp_path):
    (tmp_path / "other").mkdir()
    certificate, key = write_certificate(tmp_path)
    with pytest.raises(InputError, match="are no certificate and its key"):
        Certificate(certificate, write_certificate(tmp_path / "other")[1])
    encrypted = tmp_path / "encrypted.pem"
    command = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", encrypted]
    subprocess.run(command, check=True)
    with pytest.raises(InputError, match="is encrypted: give the key without"):
        Certificate(certificate, encrypted)
