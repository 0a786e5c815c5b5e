"""Who may ask a server of state, where it may listen, and how much it does at once."""

import hashlib
import hmac
import ipaddress
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from statestore.errors import Misuse

TOKEN_VARIABLE = "STATESTORE_SERVE_TOKEN"  # noqa: S105  # the name of a variable
_SHORTEST = 16
_LOCAL = ("localhost", "127.0.0.1", "[::1]", "::1")


class Tokens:
    """Bearer tokens, of which only digests are kept, so that nothing can print them."""

    def __init__(self, tokens: Collection[str]) -> None:
        """Misuse if one is too short to be a secret."""
        for token in tokens:
            if len(token) < _SHORTEST or not token.isascii() or not token.isprintable():
                raise Misuse(
                    f"a token has {_SHORTEST} or more printable ASCII characters: make one with "
                    "`python -c 'import secrets; print(secrets.token_urlsafe())'`"
                )
        self._digests = [_digest(token.encode()) for token in tokens]

    @classmethod
    def read(cls, file: str | None) -> Self:
        """Read the tokens in a file, one a line, or else the one in the variable."""
        if file is None:
            token = os.environ.get(TOKEN_VARIABLE, "").strip()
            return cls([token] if token else [])
        try:
            lines = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise Misuse(f"--token-file {file}: {error}: write one token a line") from error
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise Misuse(f"--token-file {file}: it has no token: write one a line")
        return cls(found)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def __repr__(self) -> str:
        return f"Tokens({len(self._digests)})"

    def admit(self, header: bytes | None) -> bool:
        """Return whether an Authorization header has one of them."""
        scheme, _, token = (header or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        found = _digest(token.strip())
        return any(hmac.compare_digest(found, digest) for digest in self._digests)


@dataclass(frozen=True)
class Listening:
    """Where a server listens, and how it knows its clients."""

    host: str = "127.0.0.1"
    port: int = 8765
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    allow_unauthenticated: bool = False

    def check(self, tokens: Tokens) -> None:
        """Misuse if anybody could read the state, or if files of TLS are missing."""
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise Misuse("TLS needs both: pass --tls-cert and --tls-key")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise Misuse("--tls-client-ca needs a server with TLS: pass --tls-cert and --tls-key")
        for path in (self.tls_certificate, self.tls_key, self.tls_client_ca):
            if path is not None and not Path(path).is_file():
                raise Misuse(f"there is no file {path}: name one in PEM format")
        if self.is_local() or tokens or self.tls_client_ca or self.allow_unauthenticated:
            return
        raise Misuse(
            f"--host {self.host}: others could read all state: pass --token-file or set "
            f"{TOKEN_VARIABLE}, or pass --tls-client-ca, or say --allow-unauthenticated"
        )

    def is_local(self) -> bool:
        """Return whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def hosts(self, tokens: Tokens) -> frozenset[str] | None:
        """Return the names under which it may be asked; None: any.

        Without a token, a page in a browser could otherwise read the state under a name of its own
        that leads to this machine.
        """
        if tokens or self.tls_client_ca or not self.is_local():
            return None
        return frozenset({*_LOCAL, self.host})


@dataclass(frozen=True, kw_only=True)
class ServeLimits:
    """What one server does at once, and for how long."""

    readers: int = 8
    requests_max: int = 2000
    request_timeout_s: float = 30
    stream_timeout_s: float = 600


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
