import subprocess

import pytest
from cases import for_each, refused
from credential_files import tokens_of, write_certificate

from bert_tf.errors import InputError
from bert_tf.server.credentials import Certificate


def test_every_token_of_a_file_is_admitted(tmp_path):
    tokens = tokens_of(tmp_path, "first\n\n# comment\n second \n")
    headers = ("Bearer first", "bearer  second ", "Bearer x", "Bearer # comment", "first", "")
    assert [tokens.admit(header) for header in headers] == [True, True, *[False] * 4]


@for_each("token", "", "pässword", "a\x07b", "name token")
def test_a_token_that_no_request_could_show(token, tmp_path):
    refused(str(tmp_path), tokens_of, tmp_path, f"{token}\n")


def test_keys_that_cannot_be_used(tmp_path):
    (tmp_path / "other").mkdir()
    certificate, key = write_certificate(tmp_path)
    with pytest.raises(InputError, match="are not a certificate and its private key"):
        Certificate(certificate, write_certificate(tmp_path / "other")[1])
    encrypted = tmp_path / "encrypted.pem"
    command = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", encrypted]
    subprocess.run(command, check=True)
    refused("is encrypted: give the key without", Certificate, certificate, encrypted)
