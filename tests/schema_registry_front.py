"""What companies put before a schema registry: TLS of their own authority, and a login."""

import base64
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from statestore.testing.kafka_node import HOST
from tests.builders import DEADLINE_S
from tests.certificates import Authority, Issued
from tests.schema_registry_rig import Registry
from tests.serving_rig import listening

LOGIN = "joe:hid:den"
_CONTENT = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class Front:
    """Where it listens, its authority, and the certificate of a client."""

    url: str
    authority: Path
    client: Issued


@contextmanager
def secured(running: Registry, folder: Path, *, of_clients: bool = False) -> Iterator[Front]:
    """Answer for a registry, to those who log in; `of_clients`: and have a certificate."""
    authority = Authority(folder, "authority")
    own, clients = authority.issue("server"), authority.issue("client")
    options: dict[str, Any] = {
        "ssl_certfile": str(own.certificate),
        "ssl_keyfile": str(own.key),
        # Clients keep their connections.
        "timeout_graceful_shutdown": 0,
    }
    if of_clients:
        options |= {
            "ssl_ca_certs": str(authority.certificate),
            "ssl_cert_reqs": ssl.CERT_REQUIRED,
        }
    with listening(_app(running.url), **options) as port:
        yield Front(
            f"https://{HOST}:{port}{urlsplit(running.url).path}",
            authority.certificate,
            clients,
        )


def _app(url: str) -> Starlette:
    behind = urlsplit(url)
    expected = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"

    async def forward(request: Request) -> Response:
        if request.headers.get("authorization") != expected:
            return JSONResponse({"error_code": 40101, "message": "Unauthorized"}, 401)
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            answer = await client.request(
                request.method,
                f"{behind.scheme}://{behind.netloc}{request.url.path}",
                params=request.query_params,
                content=await request.body(),
                headers={"content-type": _CONTENT},
            )
        return Response(answer.content, answer.status_code, media_type=_CONTENT)

    return Starlette(routes=[Route("/{path:path}", forward, methods=["GET", "POST", "PUT"])])
