"""Where the pages stand, below the address at which they are served. Importing it is cheap."""

from enum import StrEnum
from urllib.parse import quote, urlencode


class Path(StrEnum):
    """The path of each kind of page, as web frameworks write it; all answer GET."""

    OVERVIEW = "/"
    APPLICATION = "/applications/{name}"
    STORE = "/applications/{name}/stores/{store}"
    TOPICS = "/applications/{name}/topics"
    STATIC = "/static/{file}"


def address_of(root: str, name: str, store: str | None = None, **fields: object) -> str:
    """Return the address of an application's page, or of one of its stores."""
    path = f"{root}/applications/{quote(name, safe='')}"
    if store is not None:
        path += f"/stores/{quote(store, safe='')}"
    return _asking(path, fields)


def topics_address_of(root: str, name: str, **fields: object) -> str:
    """Return the address of the looks into an application's topics."""
    return _asking(f"{root}/applications/{quote(name, safe='')}/topics", fields)


def _asking(path: str, fields: dict[str, object]) -> str:
    given = {key: value for key, value in fields.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given)}" if given else path
