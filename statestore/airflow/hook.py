"""The hook of connections of the type `statestore`, and how a connection becomes settings.

Kafka's own connections, of the type `kafka`, serve as well.
"""

import json
from collections.abc import Mapping
from typing import Any

from airflow.providers.common.compat.sdk import (
    AirflowFailException,
    AirflowNotFoundException,
    BaseHook,
)
from airflow.sdk import Connection
from airflow.sdk.log import mask_secret

from statestore.airflow_provider import CONNECTION_TYPE, UI_FIELD_BEHAVIOUR
from statestore.settings import SECURITY_PREFIXES, is_secret

KAFKA_TYPE = "kafka"
_OF_KAFKA = (*SECURITY_PREFIXES, "bootstrap.servers", "state.dir", "statestore.")
"""What is taken of a connection of Kafka's type; its group, for one, is not."""


class StateStoreHook(BaseHook):
    """Reads a connection to the brokers of an application.

    Of a connection of the type `statestore`, the host has the brokers, as in
    `kafka-1:9092,kafka-2:9092`, login and password are those of SASL, and the extra has further
    settings by their keys, such as `security.protocol`, `sasl.mechanism`, `ssl.ca.location` and
    `state.dir`. A connection of the type `kafka` has the properties of Kafka's clients in its
    extra.
    """

    conn_name_attr = "statestore_conn_id"
    default_conn_name = "statestore_default"
    conn_type = CONNECTION_TYPE
    hook_name = "statestore"

    def __init__(self, statestore_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.statestore_conn_id = statestore_conn_id

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Return how Airflow's form shows the fields of such a connection."""
        return {name.replace("-", "_"): value for name, value in UI_FIELD_BEHAVIOUR.items()}

    def get_conn(self) -> dict[str, str]:
        """Return the settings of the connection, secrets included; do not log them."""
        return settings_of(self.get_connection(self.statestore_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Ask the brokers for the metadata of the cluster."""
        try:
            from statestore.airflow.input_watch import probe

            return True, str(probe(self.get_conn()))
        except Exception as error:  # noqa: BLE001  # whatever fails, the form shows it
            return False, str(error)


def connection_settings(conn_id: str) -> dict[str, str]:
    """Return the settings of a connection; AirflowFailException if it cannot be used."""
    try:
        return settings_of(BaseHook.get_connection(conn_id))
    except (AirflowNotFoundException, ValueError) as error:
        raise AirflowFailException(
            f"connection {conn_id!r} cannot be used: {error}; make a connection of that id, of the "
            f"type {CONNECTION_TYPE} or {KAFKA_TYPE}"
        ) from error


async def aconnection_settings(conn_id: str) -> dict[str, str]:
    """Return the settings of a connection to the triggerer; errors are ValueError."""
    try:
        return settings_of(await BaseHook.aget_connection(conn_id))
    except AirflowNotFoundException as error:
        raise ValueError(str(error)) from error


def settings_of(connection: Connection) -> dict[str, str]:
    """Turn a connection into settings by key, and have Airflow's logs mask its secrets."""
    extra = _flat(_extra(connection))
    if connection.conn_type == KAFKA_TYPE:
        found = {key: value for key, value in extra.items() if key.startswith(_OF_KAFKA)}
    elif connection.conn_type == CONNECTION_TYPE:
        host = connection.host or ""
        servers = f"{host}:{connection.port}" if host and connection.port else host
        named = {
            "bootstrap.servers": servers,
            "sasl.username": connection.login or "",
            "sasl.password": connection.password or "",
        }
        found = {key: value for key, value in named.items() if value} | extra
    else:
        raise ValueError(f"it is of the type {connection.conn_type!r}")
    for key, value in found.items():
        if is_secret(key):
            mask_secret(value)
    return found


def _extra(connection: Connection) -> Mapping[str, Any]:
    """The extra; ValueError where Airflow takes what is not JSON for an empty one."""
    try:
        found = json.loads(connection.extra or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its extra is not JSON: {error}") from error
    if not isinstance(found, Mapping):
        raise ValueError("its extra is not a JSON object")  # noqa: TRY004  # as above
    return connection.extra_dejson  # it masks what is secret by its name


def _flat(extra: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings by key, as text; fields of the form that were left empty say nothing."""
    found: dict[str, str] = {}
    for name, value in extra.items():
        match value:
            case Mapping():
                found |= _flat(value, f"{prefix}{name}.")
            case None | "":
                pass
            case bool():
                found[prefix + name] = str(value).lower()
            case str() | int() | float():
                found[prefix + name] = str(value)
            case _:
                raise ValueError(f"{prefix}{name} of its extra is neither text nor a number")
    return found
