"""Tokens and certificates, read again when their files change."""

import base64
import hmac
import logging
import ssl
from pathlib import Path

from bert_tf.errors import InputError

_LOG = logging.getLogger(__name__)


class _Watched:
    """Content of files. Wrong content raises InputError at first; later it is logged, not used."""

    def __init__(self, *paths: str | Path) -> None:
        self._paths = [Path(path) for path in paths]
        self._complaint = ""
        self._read()

    def refresh(self) -> None:
        try:
            self._read()
            self._complaint = ""
        except InputError as error:
            if str(error) != self._complaint:
                _LOG.warning("%s; the former content stays in use", error)
            self._complaint = str(error)

    def _read(self) -> None:
        raise NotImplementedError


class Tokens(_Watched):
    """Named tokens, of which each request must show one: a line "NAME TOKEN", or "TOKEN", each."""

    def _read(self) -> None:
        (path,) = self._paths
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise InputError(f"{path} cannot be read ({error}): give a file with tokens") from error
        tokens: dict[str, bytes] = {}
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            name = words[0] if len(words) == 2 else f"line {number}"
            if len(words) > 2:
                raise InputError(f"{path}, line {number}: write one token, or its name and it")
            if not (line.isascii() and line.replace("\t", " ").isprintable()):
                raise InputError(
                    f"{path}, line {number}: the token has characters that headers cannot carry: "
                    "use printable ASCII"
                )
            if name in tokens:
                raise InputError(f"{path}, line {number}: the name {name} is taken: give another")
            tokens[name] = words[-1].encode()
        if not tokens:
            raise InputError(f"{path} holds no token: write one per line")
        self._tokens = tokens

    def name_of(self, header: str) -> str | None:
        """Name of the token in an `Authorization` header: of Bearer, or the password of Basic."""
        scheme, _, credentials = header.strip().partition(" ")
        shown = credentials.strip().encode()
        if scheme.lower() == "basic":
            try:
                shown = base64.b64decode(shown, validate=True).partition(b":")[2]
            except ValueError:
                return None
        elif scheme.lower() != "bearer":
            return None
        # All are compared, each in a time that does not depend on its content.
        same = [name for name, token in self._tokens.items() if hmac.compare_digest(shown, token)]
        return same[0] if same else None


class Certificate(_Watched):
    """A certificate chain and its key, in PEM files."""

    pair: tuple[bytes, ...] = ()  # PEM text of the private key and of the certificate chain

    def __init__(self, certificate: str | Path, key: str | Path) -> None:
        # New connections find it up to date.
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        super().__init__(certificate, key)

    def _read(self) -> None:
        certificate, key = self._paths
        try:
            pair = key.read_bytes(), certificate.read_bytes()
            if pair == self.pair:
                return
            # First apart: a pair that does not fit would spoil the context in use.
            trial = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            trial.load_cert_chain(certificate, key, self._refuse_password)
        except OSError as error:  # ssl.SSLError is one
            raise InputError(
                f"{certificate} and {key} are no certificate and its key ({error}): give PEM files"
            ) from error
        self.context.load_cert_chain(certificate, key)
        self.pair = pair

    def _refuse_password(self) -> str:
        """Called for an encrypted key, for whose password OpenSSL would ask on the terminal."""
        raise InputError(
            f"{self._paths[1]} is encrypted: give the key without a password, as "
            "`openssl pkey -in KEY -out PLAIN_KEY` writes it"
        )
