"""What Airflow knows of this distribution: a provider, found by the entry point of its metadata.

Airflow calls `get_provider_info` while it reads its own configuration. So this module lies outside
of statestore.airflow and imports nothing of Airflow.
"""

from typing import Any, Final

from statestore import __version__

CONNECTION_TYPE: Final = "statestore"
UI_FIELD_BEHAVIOUR: Final = {
    "hidden-fields": ["schema", "port"],
    "relabeling": {
        "host": "Bootstrap servers",
        "login": "SASL user",
        "password": "SASL password",
    },
    "placeholders": {"host": "kafka-1:9092,kafka-2:9092"},
}
"""How Airflow's form shows the fields of a connection."""

_NAME: Final = "statestore"
_PACKAGE: Final = "statestore.airflow"


def get_provider_info() -> dict[str, Any]:
    """Return the description that Airflow's schema of providers asks for."""
    return {
        "package-name": _NAME,
        "name": _NAME,
        "description": "Exactly-once, stateful stream processing on Kafka, with stores of its own.",
        "versions": [__version__],
        "integrations": [{"integration-name": _NAME, "tags": ["software"]}],
        "operators": _modules("command_operator", "operator", "watching"),
        "sensors": _modules("input_trigger", "waiting"),
        "triggers": _modules("input_trigger"),
        "hooks": _modules("hook"),
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": f"{_PACKAGE}.hook.StateStoreHook",
                "hook-name": _NAME,
                "ui-field-behaviour": UI_FIELD_BEHAVIOUR,
                "conn-fields": _connection_fields(),
            }
        ],
        "extra-links": [
            f"{_PACKAGE}.reports.{name}" for name in ("ReportLink", "DataDocsLink", "SparkUILink")
        ],
        "asset-uris": [{"schemes": [_NAME], "handler": None}],
    }


def _modules(*names: str) -> list[dict[str, Any]]:
    modules = [f"{_PACKAGE}.{name}" for name in names]
    return [{"integration-name": _NAME, "python-modules": modules}]


def _connection_fields() -> dict[str, dict[str, Any]]:
    """The settings that Airflow's form asks for by themselves; others go into the extra."""
    protocols = ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    return {
        "security.protocol": {
            "label": "Security protocol",
            "schema": {"type": ["string", "null"], "enum": [*protocols, None]},
        },
        "sasl.mechanism": {
            "label": "SASL mechanism",
            "description": "Such as SCRAM-SHA-512.",
            "schema": {"type": ["string", "null"]},
        },
        "ssl.ca.location": {
            "label": "Certificates",
            "description": "The file of the authorities that signed those of the brokers.",
            "schema": {"type": ["string", "null"]},
        },
        "state.dir": {
            "label": "State directory",
            "description": "The root of all state, on a volume that every worker sees.",
            "schema": {"type": ["string", "null"]},
        },
    }
