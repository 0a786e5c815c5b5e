"""The description of the server at /openapi.json: the documents of answers.py, as JSON schemas."""

from collections.abc import Callable
from typing import Any

import msgspec

from statestore.serving.answers import ANSWERS, ARROW
from statestore.serving.gate import PROBLEM

_REF = "#/components/schemas/{name}"
_PROBLEMS = {
    "400": "A parameter is wrong.",
    "401": "There is no token, or a wrong one.",
    "404": "There is no such store.",
    "410": "The page token has expired.",
    "503": "A copy or the server is not ready: try again.",
    "504": "min_position was not reached in time.",
}


def responses(name: str) -> dict[int | str, dict[str, Any]]:
    """Return the answers of one endpoint."""
    content: dict[str, Any] = {"application/json": {"schema": _ref(name)}}
    found: dict[int | str, dict[str, Any]] = {
        "200": {"description": "The answer.", "content": content}
    }
    for status, description in _PROBLEMS.items():
        found[status] = {
            "description": description,
            "content": {PROBLEM: {"schema": _ref("Problem")}},
        }
    return found


def body(kind: type) -> dict[str, Any]:
    """Return what a request sends."""
    content = {"application/json": {"schema": _ref(kind.__name__)}}
    return {"requestBody": {"required": True, "content": content}}


def complete(app: Any, body_kind: type, *, secured: bool) -> None:
    """Add the schemas of answers, the stream of ranges, and tokens to an application's document."""
    made: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        found = made()
        _, schemas = msgspec.json.schema_components([*ANSWERS, body_kind], ref_template=_REF)
        found.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
        # Parameters are refused with 400, as everything else that is wrong is.
        for path, methods in found["paths"].items():
            for method in methods.values():
                method["responses"].pop("422", None)
                if path.endswith(("/range", "/range-history")):
                    binary = {"schema": {"type": "string", "format": "binary"}}
                    method["responses"]["200"]["content"][ARROW] = binary
        if secured:
            found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            found["security"] = [{"token": []}]
        return found

    app.openapi = openapi


def _ref(name: str) -> dict[str, str]:
    return {"$ref": _REF.format(name=name)}
