"""The pages over HTTP: routes, headers, and answers to what cannot be found.

The routes ask nobody to log in. Whoever mounts them decides who may see them: `statestore ui`
serves this machine, and Airflow asks its own users.
"""

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from statestore.errors import StateStoreError
from statestore.runtime import SystemClock
from statestore.serving.access import Tokens
from statestore.serving.gate import App, ServingGate
from statestore.ui import paths
from statestore.ui.browser import Question
from statestore.ui.pages import Pages
from statestore.ui.polling import Poller, applications_of, pipelines_of
from statestore.ui.topic_records import TopicQuestion

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; "
    "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_STATIC: Final = {
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
    "approve.js": "text/javascript",
    "charts.js": "text/javascript",
    "folds.js": "text/javascript",
    "topology.js": "text/javascript",
    "dagre.min.js": "text/javascript",
    "dagre.LICENSE.txt": "text/plain",
    "htmx.min.js": "text/javascript",
    "htmx.LICENSE.txt": "text/plain",
    "uplot.min.css": "text/css",
    "uplot.min.js": "text/javascript",
    "uplot.LICENSE.txt": "text/plain",
}
_FIELD_MAX: Final = 2000
_REQUESTS_MAX: Final = 200

Endpoint = Callable[[Request], Response]


class Site:
    """The routes of the page."""

    def __init__(self, lookout: Poller, mounted_at: str | None = None) -> None:
        """`mounted_at`: where Airflow serves the routes below its own address."""
        self._pages = Pages(lookout, mounted_at)

    def routes(self) -> dict[paths.Path, Endpoint]:
        """Return each endpoint by its path; all answer GET, and block."""
        return {
            paths.Path.OVERVIEW: self._overview,
            paths.Path.APPLICATION: self._application,
            paths.Path.STORE: self._store,
            paths.Path.TOPICS: self._topics,
            paths.Path.STATIC: self._static,
        }

    def _overview(self, request: Request) -> Response:
        search, page = _field(request, "search"), _number(request, "page")
        return self._html(
            request, lambda root: self._pages.overview(root, search=search, page=page), ""
        )

    def _application(self, request: Request) -> Response:
        name, page = request.path_params["name"], _number(request, "page")
        span = _field(request, "span")
        return self._html(
            request,
            lambda root: self._pages.application(root, name, page=page, span=span),
            f"There is no application {name!r}.",
        )

    def _store(self, request: Request) -> Response:
        name = request.path_params["name"]
        question = Question(
            request.path_params["store"],
            _field(request, "key"),
            _field(request, "prefix"),
            _field(request, "as_of"),
            history=bool(_field(request, "history")),
            raw=bool(_field(request, "raw")),
            after=_field(request, "after"),
        )
        return self._html(
            request,
            lambda root: self._pages.store(root, name, question),
            f"There is no application {name!r}.",
        )

    def _topics(self, request: Request) -> Response:
        name = request.path_params["name"]
        question = TopicQuestion(
            _field(request, "topic"),
            _field(request, "partition"),
            _field(request, "offset"),
            _field(request, "count"),
            raw=bool(_field(request, "raw")),
        )
        return self._html(
            request,
            lambda root: self._pages.topics(root, name, question),
            f"There is no application {name!r}.",
        )

    def _static(self, request: Request) -> Response:
        file = request.path_params["file"]
        if file not in _STATIC:
            return Response("not found", 404, _HEADERS, "text/plain")
        data = resources.files("statestore.ui").joinpath("static", file).read_bytes()
        headers = _HEADERS | {"Cache-Control": "max-age=3600"}
        return Response(data, 200, headers, _STATIC[file])

    def _html(self, request: Request, made: Callable[[str], str | None], missing: str) -> Response:
        root, status = str(request.scope.get("root_path", "")).rstrip("/"), 200
        try:
            page = made(root)
        except StateStoreError as error:
            page, status = self._pages.missing(root, "Cannot be shown", str(error)), 503
        if page is None:
            page, status = self._pages.missing(root, "Not found", missing), 404
        return Response(page, status, _HEADERS, "text/html; charset=utf-8")


def routes_of(config: Path, mounted_at: str | None = None) -> dict[paths.Path, Endpoint]:
    """Return the routes for an applications file; relative paths in it start at its folder.

    `mounted_at`: where Airflow serves them below its own address, if it does.
    """
    folder = config.parent
    lookout = Poller(applications_of(config, folder), SystemClock(), pipelines_of(config, folder))
    return Site(lookout, mounted_at).routes()


def application(lookout: Poller, hosts: frozenset[str] | None) -> App:
    """Return the page as an application of its own, which answers only under these host names."""
    routes = [Route(path, endpoint) for path, endpoint in Site(lookout).routes().items()]
    # Another site could otherwise point its own name at this machine and read the page.
    return ServingGate(
        Starlette(routes=routes), tokens=Tokens(()), hosts=hosts, requests_max=_REQUESTS_MAX
    )


def _field(request: Request, name: str) -> str:
    return request.query_params.get(name, "").strip()[:_FIELD_MAX]


def _number(request: Request, name: str) -> int:
    text = _field(request, name)
    return int(text) if text.isdecimal() and len(text) < 9 else 1
