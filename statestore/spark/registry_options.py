"""The options of both Data Sources that say where a schema registry is; none carries a secret."""

import re
from collections.abc import Mapping
from typing import Any, Final

import statestore as ss
from statestore.errors import Misuse
from statestore.model.texts import whole_number
from statestore.settings import is_secret, shows_secret

REGISTRY: Final = "schema_registry"
"""The option with the URL. With a dot and a name behind it: an argument of SchemaRegistry."""
_USER: Final = re.compile(r"//(?!\$\{[^}]*\}(:\$\{[^}]*\})?@)[^/]*@")
_OF_VARIABLES: Final = re.compile(r"([^:]*:)?\$\{[^}]*\}")
_TRUTHS: Final = {"true": True, "false": False}
_NUMBERS: Final = frozenset(
    {
        "timeout",
        "max_retries",
        "retries_wait_ms",
        "retries_max_wait_ms",
        "cache_capacity",
        "cache_latest_ttl_sec",
    }
)
"""What Confluent's client wants as numbers; all else is text, of whatever characters."""


def registry_url(options: Mapping[str, str], data_source: str) -> str | None:
    """Return the URL of the schema registry; Misuse if it tells a secret to the workers."""
    url = options.get(REGISTRY)
    if url is not None and _USER.search(url):
        raise Misuse(
            f"{data_source}: the user and the password in {REGISTRY} would be sent to Spark's "
            "workers as they are: write https://${USER}:${PASSWORD}@host, and set both variables "
            "for the driver and the executors"
        )
    return url


def registry_of(options: Mapping[str, str], data_source: str) -> ss.SchemaRegistry | None:
    """Return the registry that the options describe, or None; Misuse names one that is wrong."""
    url, given = registry_url(options, data_source), dict[str, Any]()
    for option, text in options.items():
        name = option.removeprefix(f"{REGISTRY}.")
        if name == option:
            continue
        if url is None:
            raise Misuse(f"{data_source}: {option} without {REGISTRY}: pass the registry's URL")
        if name == "url":
            raise Misuse(f"{data_source}: {option}: pass the URL as {REGISTRY}")
        bare = is_secret(name) and not _OF_VARIABLES.fullmatch(text)
        if bare or shows_secret("", text):
            raise Misuse(
                f"{data_source}: {option} would be sent to Spark's workers as it is: write "
                "${VARIABLE} in place of the secret, and set the variable for the driver and the "
                "executors"
            )
        number = whole_number(text) if name.replace(".", "_") in _NUMBERS else None
        given[name] = _TRUTHS.get(text.lower(), text) if number is None else number
    if url is None:
        return None
    if not isinstance(given.get("auto_register", False), bool):
        raise Misuse(f"{data_source}: {REGISTRY}.auto_register: want true or false")
    return ss.SchemaRegistry(url, **given)
