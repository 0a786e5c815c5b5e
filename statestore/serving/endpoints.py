"""An endpoint of the server: a path, who answers, how queries are read, and the OpenAPI document.

The document is made of the Structs that endpoints read and send.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from typing import Any, Final, TypeVar, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from statestore import __version__
from statestore.errors import Misuse
from statestore.model.decoders import converted
from statestore.serving.documents import ARROW, Problem, RowsAnswer
from statestore.serving.gate import PROBLEM

Q = TypeVar("Q", bound=msgspec.Struct)
_REF: Final = "#/components/schemas/{name}"
_PROBLEMS: Final = {
    "400": "A parameter is wrong.",
    "401": "There is no token, or a wrong one.",
    "404": "There is no such store.",
    "410": "The page token has expired.",
    "503": "A copy or the server is not ready: try again.",
    "504": "min_position was not reached in time.",
}
_STORE: Final = {"type": "string", "description": "The name of the store."}
# Python refuses to read some more digits than these.
_NUMBER: Final = re.compile(r"\s*([+-]?[0-9](?:_?[0-9]){,4000})(?:\.0+)?\s*")
_TRUE, _FALSE = ("1", "true", "t", "yes", "y", "on"), ("0", "false", "f", "no", "n", "off")
_FLAGS: Final = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
_NOTHING: Final = msgspec.defstruct("Nothing", [])


@dataclass(frozen=True)
class Endpoint:
    """An ASGI app: `act` gets the query, the request, and the store that the path names."""

    path: str
    act: Callable[..., Awaitable[Response]]
    query: type[msgspec.Struct] = _NOTHING
    answer: type | None = RowsAnswer
    body: type | None = None
    streams: bool = False
    method: str = "GET"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = read_query(self.query, scope["query_string"])
        response = await self.act(query, Request(scope, receive, send), **scope["path_params"])
        await response(scope, receive, send)

    def route(self) -> Route:
        """Return where Starlette finds it."""
        route = Route(self.path, self)
        route.methods = {self.method}  # Starlette would add HEAD.
        return route

    def described(self) -> dict[str, Any]:
        """Return what the document says of the path."""
        method, name = self.method.lower(), self.path.rpartition("/")[2].replace("-", "_")
        content = {"application/json": _schema(self.answer)}
        if self.streams:
            content[ARROW] = {"schema": {"type": "string", "format": "binary"}}
        problem = {PROBLEM: _schema(Problem)}
        problems = {} if self.answer is None else _PROBLEMS
        (_,), schemas = msgspec.json.schema_components([self.query])
        query = schemas[self.query.__name__]
        named = {"path": {"store": _STORE} if "{store}" in self.path else {}}
        named["query"], required = query["properties"], ["store", *query["required"]]
        found: dict[str, Any] = {
            "summary": name.replace("_", " ").title(),
            "description": inspect.getdoc(self.act if self.query is _NOTHING else self.query),
            "operationId": re.sub(r"\W", "_", f"{name}{self.path}_{method}"),
            "parameters": [
                {
                    "name": each,
                    "in": place,
                    "required": each in required,
                    "description": about["description"],
                    "schema": about,
                }
                for place, parameters in named.items()
                for each, about in parameters.items()
            ],
            "responses": {"200": {"description": "The answer.", "content": content}}
            | {code: {"description": why, "content": problem} for code, why in problems.items()},
        }
        if self.body is not None:
            sent = {"application/json": _schema(self.body)}
            found["requestBody"] = {"required": True, "content": sent}
        return {method: found}


def read_query(kind: type[Q], query_string: bytes) -> Q:
    """Read a query; of a parameter that is repeated and is not a list, the last one counts.

    Misuse names a parameter that is unknown here, is missing, or has another kind of value.
    """
    texts: dict[str, list[str]] = {}
    for name, text in parse_qsl(query_string.decode("latin-1"), keep_blank_values=True):
        texts.setdefault(name, []).append(text)
    readers = _readers(kind)
    # If a parameter is misspelt, the answer would be to another question.
    if unknown := sorted(texts.keys() - readers.keys()):
        known = ", ".join(sorted(readers))
        raise Misuse(f"there is no parameter {unknown[0]!r} here: use {known}")
    try:
        return converted({name: readers[name](found) for name, found in texts.items()}, kind)
    except msgspec.ValidationError as error:
        # Both of msgspec's messages end with the name.
        name, said = re.findall(r"\w+", str(error))[-1], str(error).partition(" - at ")[0]
        if name in texts:
            said = said.replace("got `str`", f"got {texts[name][-1][:80]!r}").replace(" | null", "")
        else:
            said = "Field required"
        raise Misuse(f"parameter {name!r}: {said}: see /openapi.json") from error


@cache
def _readers(kind: type[msgspec.Struct]) -> Mapping[str, Callable[[list[str]], Any]]:
    """Return what makes a value of texts, by the name of the parameter.

    A text that is not read as its type stays one, and msgspec refuses it.
    """
    types = get_type_hints(kind)
    names = zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)
    return {shown: _READERS.get(types[name], itemgetter(-1)) for name, shown in names}


def _number(texts: list[str]) -> int | str:
    found = _NUMBER.fullmatch(texts[-1])
    return int(found[1]) if found else texts[-1]


_READERS: Final[Mapping[Any, Callable[[list[str]], Any]]] = {
    bool: lambda texts: _FLAGS.get(texts[-1].lower(), texts[-1]),
    int: _number,
    int | None: _number,
    list[str]: list,
}


def document(told: Sequence[Endpoint], application_id: str, *, secured: bool) -> dict[str, Any]:
    """Return the OpenAPI document of endpoints; `secured`: they ask for a token."""
    about = f"The state of the application {application_id}, read-only."
    kinds = [kind for each in told for kind in (each.answer, each.body) if kind is not None]
    _, schemas = msgspec.json.schema_components([*kinds, Problem], ref_template=_REF)
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "statestore serve", "description": about, "version": __version__},
        "paths": {each.path: each.described() for each in told},
        "components": {"schemas": schemas},
    }
    if secured:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return found


def _schema(kind: type | None) -> dict[str, Any]:
    return {"schema": {} if kind is None else {"$ref": _REF.format(name=kind.__name__)}}
