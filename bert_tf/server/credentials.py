"""The tokens and the certificate of a server, read once."""

import base64
import hmac
import ssl
from pathlib import Path

from bert_tf.errors import InputError


class Tokens:
    """Tokens, one per line of a file, of which each request must show one."""

    def __init__(self, path: str | Path) -> None:
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}): give a file with tokens") from error
        self._tokens: list[bytes] = []
        for number, line in enumerate(lines, start=1):
            token = line.strip()
            if not token or token.startswith("#"):
                continue
            if not token.isascii() or not token.isprintable() or " " in token:
                raise InputError(
                    f"{path}, line {number}: a token must be printable ASCII without spaces: write "
                    "one token per line"
                )
            self._tokens.append(token.encode())
        if not self._tokens:
            raise InputError(f"{path} contains no tokens: write one per line")

    def admit(self, header: str) -> bool:
        """Whether an `Authorization` header shows a token: of Bearer, or the password of Basic."""
        scheme, _, credentials = header.strip().partition(" ")
        shown = credentials.strip().encode()
        if scheme.lower() == "basic":
            try:
                shown = base64.b64decode(shown, validate=True).partition(b":")[2]
            except ValueError:
                return False
        elif scheme.lower() != "bearer":
            return False
        # All are compared, each in a time that does not depend on its content.
        return sum(hmac.compare_digest(shown, token) for token in self._tokens) > 0


class Certificate:
    """A certificate chain and its key, from PEM files.

    Attributes:
        context: for REST.
        pair: PEM text of the private key and of the certificate chain, for gRPC.
    """

    def __init__(self, certificate: str | Path, key: str | Path) -> None:
        def refuse_password() -> str:
            # Called for an encrypted key, for whose password OpenSSL would ask on the terminal.
            raise InputError(
                f"{key} is encrypted: give the key without a password, as "
                "`openssl pkey -in KEY -out PLAIN_KEY` writes it"
            )

        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            self.pair = Path(key).read_bytes(), Path(certificate).read_bytes()
            self.context.load_cert_chain(certificate, key, refuse_password)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(
                f"{certificate} and {key} are not a certificate and its private key ({error}): "
                "give PEM files"
            ) from error
