"""A token server of a test's own: OAuth 2's client credentials, signed JWTs, and their keys."""

import base64
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import ceil
from time import time
from typing import Any
from urllib.parse import parse_qs

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

HOST = "127.0.0.1"
CLIENT, SECRET = "shop", "correct+horse/battery"
KEY_ID = "one"


class Answer:
    """What the server answers in place of a token."""

    def __init__(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self.status = status
        self.body = body
        self.headers = dict(headers or {})

    @classmethod
    def of(cls, status: int, told: object, **headers: str) -> "Answer":
        """JSON."""
        return cls(status, json.dumps(told).encode(), headers)


class TokenServer:
    """It gives tokens that last for `life_s` to whoever has the secret, and notes who asked."""

    def __init__(
        self, *, life_s: float = 3600, subject: str = CLIENT, tls: ssl.SSLContext | None = None
    ) -> None:
        self.life_s = life_s
        self.subject = subject
        self.instead: Answer | None = None
        self.blocked = threading.Event()
        self.blocked.set()
        self.asked: list[dict[str, str]] = []
        self.keys_asked = 0
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._tls = tls
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Where tokens are."""
        assert self._server is not None
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{HOST}:{self._server.server_address[1]}/token"

    @property
    def keys_url(self) -> str:
        """Where brokers find the keys (a JWKS)."""
        return self.url.removesuffix("token") + "keys"

    @contextmanager
    def serving(self) -> Iterator["TokenServer"]:
        """Answer until the end of the block."""
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                server.answer_token(self)

            def do_GET(self) -> None:
                server.answer_keys(self)

            def log_message(self, *_: Any) -> None:
                pass

        with ThreadingHTTPServer((HOST, 0), Handler) as made:
            made.daemon_threads = True
            if self._tls is not None:
                made.socket = self._tls.wrap_socket(made.socket, server_side=True)
            self._server = made
            thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield self
            finally:
                self.blocked.set()
                made.shutdown()
                thread.join()

    def token(self, **claims: object) -> str:
        """A signed token."""
        now_s = time()
        told = {
            "sub": self.subject,
            "iat": int(now_s),
            "exp": ceil(now_s + self.life_s),
            "aud": "brokers",
            "iss": "tests",
            **claims,
        }
        head = {"alg": "RS256", "typ": "JWT", "kid": KEY_ID}
        text = ".".join(_encoded(json.dumps(part).encode()) for part in (head, told))
        signed = self._key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{text}.{_encoded(signed)}"

    def answer_token(self, asked: BaseHTTPRequestHandler) -> None:
        """Answer whoever asks for a token."""
        length = int(asked.headers.get("Content-Length", 0))
        fields = {
            key: found[0] for key, found in parse_qs(asked.rfile.read(length).decode()).items()
        }
        self.asked.append(fields)
        self.blocked.wait()
        expected = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if self.instead is not None:
            _send(asked, self.instead)
        elif asked.headers.get("Authorization") != f"Basic {expected}":
            _send(asked, Answer.of(401, {"error": "invalid_client", "error_description": "who?"}))
        elif fields.get("grant_type") != "client_credentials":
            _send(asked, Answer.of(400, {"error": "unsupported_grant_type"}))
        else:
            scope = {"scope": fields["scope"]} if "scope" in fields else {}
            told = {"access_token": self.token(**scope), "token_type": "Bearer"}
            _send(asked, Answer.of(200, told | {"expires_in": int(self.life_s)}))

    def answer_keys(self, asked: BaseHTTPRequestHandler) -> None:
        """Answer a broker that asks for keys."""
        self.keys_asked += 1
        numbers = self._key.public_key().public_numbers()
        key = {
            "kty": "RSA",
            "alg": "RS256",
            "use": "sig",
            "kid": KEY_ID,
            "n": _encoded(numbers.n.to_bytes(256)),
            "e": _encoded(numbers.e.to_bytes(3)),
        }
        _send(asked, Answer.of(200, {"keys": [key]}))


def _send(asked: BaseHTTPRequestHandler, answer: Answer) -> None:
    asked.send_response(answer.status)
    for name, value in {"Content-Type": "application/json", **answer.headers}.items():
        asked.send_header(name, value)
    asked.send_header("Content-Length", str(len(answer.body)))
    asked.end_headers()
    asked.wfile.write(answer.body)


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
