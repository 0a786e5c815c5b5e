"""The applications file as the DAGs see it: names, schedules, and who is exported; no settings.

The job reads the rest of the file itself (`--application-id`, `--config`), so nothing secret passes
through Airflow.
"""

import importlib
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from airflow.sdk import Asset

PROJECT_DIR = Path(__file__).resolve().parents[2]
SAMPLE_ID = "flights"
EXPORT_TARGET = "statestore.export.target"
SPAN = r"^[1-9][0-9]*(ms|s|m|h|d)?(?![\s\S])"
"""A time span; a number alone is seconds."""


class Application(NamedTuple):
    """One `[applications.<id>]`: what a DAG needs to be made for it."""

    application_id: str
    pipeline: str
    schedule: str | None
    config: Path
    exports: bool = False
    """Whether it says where its exports go."""
    alerts: Mapping[str, Any] = MappingProxyType({})
    """Its `[applications.<id>.alerts]`, as it stands there."""

    def dag_id(self, verb: str) -> str:
        """`micro_batches` for the sample application, `micro_batches__<id>` for any other."""
        return verb if self.application_id == SAMPLE_ID else f"{verb}__{self.application_id}"

    @property
    def asset(self) -> Asset:
        """The committed state of this application.

        Two assets of one URI and different names exclude each other: nobody else makes one.
        """
        name = f"{self.application_id}_state"
        return Asset(name=name, uri=f"statestore://{self.application_id}/state")


def applications_file() -> Path:
    """`STATESTORE_CONFIG`, else `statestore.toml` beside the `dags` folder."""
    configured = os.environ.get("STATESTORE_CONFIG")
    return Path(configured).resolve() if configured else PROJECT_DIR / "statestore.toml"


def load_applications() -> tuple[Application, ...]:
    """Every application of the file, in its order; ValueError names the file and the field."""
    path = applications_file()
    sections = _document(path).get("applications", {})
    return tuple(
        Application(
            application_id=application_id,
            pipeline=_text(section, "pipeline", application_id, path) or "given by the job's flags",
            schedule=_text(section, "schedule", application_id, path),
            config=path,
            exports=bool(_table(section, "settings", application_id, path).get(EXPORT_TARGET)),
            alerts=_table(section, "alerts", application_id, path),
        )
        for application_id, section in sections.items()
    )


def failure_callback() -> Callable[..., Any] | None:
    """What `on_failure` of `[alerts]` names as "module:name": a notifier, or a function."""
    path = applications_file()
    named = _document(path).get("alerts", {}).get("on_failure")
    if named is None:
        return None
    try:
        module, name = named.split(":")
        callback = getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(
            f"{path}: on_failure = {named!r} of [alerts] cannot be had: {error}; name a notifier "
            'or a function as "module:name", importable by Airflow'
        ) from error
    return cast("Callable[..., Any]", callback)


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"cannot read applications file {path}: {error}; set STATESTORE_CONFIG to another"
        ) from error


def _table(section: dict[str, Any], name: str, application_id: str, path: Path) -> dict[str, Any]:
    found = section.get(name, {})
    if isinstance(found, dict):
        return found
    raise ValueError(f"{path}: [applications.{application_id}.{name}] must be a table")


def _text(section: dict[str, object], field: str, application_id: str, path: Path) -> str | None:
    value = section.get(field)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{path}: {field} of [applications.{application_id}] must be text")
