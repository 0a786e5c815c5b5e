"""Where the pages stand, below the address at which they are served. Importing it is cheap."""

from enum import StrEnum


class Path(StrEnum):
    """The path of each kind of page, as web frameworks write it; all answer GET."""

    OVERVIEW = "/"
    APPLICATION = "/applications/{name}"
    STORE = "/applications/{name}/stores/{store}"
    STATIC = "/static/{file}"
