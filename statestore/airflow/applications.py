"""The applications file as DAGs see it: names, schedules, export targets and alerts.

The job reads the settings from the file by itself (`--application-id`, `--config`), so no secret
passes through Airflow.
"""

import importlib
import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from airflow.sdk import Asset
from airflow.sdk.configuration import conf

FILE_NAME = "statestore.toml"
SAMPLE_ID = "flights"
EXPORT_TARGET = "statestore.export.target"
SPAN = r"^[1-9][0-9]*(ms|s|m|h|d)?(?![\s\S])"
"""A time span; a number without a unit is in seconds."""


class Application(NamedTuple):
    """One `[applications.<id>]`: what a DAG has to know about it."""

    application_id: str
    pipeline: str
    schedule: str | None
    config: Path
    exports: bool = False
    """Whether the application names a target for its exports."""
    alerts: Mapping[str, Any] = MappingProxyType({})
    """The table `[applications.<id>.alerts]`, unchanged."""
    input: Mapping[str, Any] | None = None
    """The table `[applications.<id>.input]`, unchanged; None if there is none."""

    def dag_id(self, verb: str) -> str:
        """`micro_batches` for the sample application, `micro_batches__<id>` for any other."""
        return verb if self.application_id == SAMPLE_ID else f"{verb}__{self.application_id}"

    @property
    def asset(self) -> Asset:
        """The committed state of this application.

        Airflow refuses two assets that have one URI and different names, so assets of this URI are
        made here only.
        """
        name = f"{self.application_id}_state"
        return Asset(name=name, uri=f"statestore://{self.application_id}/state")


def applications_file(config: Path | str | None = None) -> Path:
    """Find the applications file.

    `config` comes first, then the variable STATESTORE_CONFIG, then a `statestore.toml` in Airflow's
    folder of DAGs, then one in the folder above it. ValueError names the places without a file.
    """
    named = config or os.environ.get("STATESTORE_CONFIG")
    if named:
        return Path(named).resolve()
    dags = Path(conf.get("core", "dags_folder")).resolve()
    places = [dags / FILE_NAME, dags.parent / FILE_NAME]
    for place in places:
        if place.is_file():
            return place
    raise ValueError(
        f"there is no applications file: neither {places[0]} nor {places[1]} exists; set "
        "STATESTORE_CONFIG to its path, or pass config="
    )


def load_applications(config: Path | str | None = None) -> tuple[Application, ...]:
    """Read every application of the file, in its order; ValueError names the file and the field."""
    path = applications_file(config)
    sections = _document(path).get("applications", {})
    return tuple(
        Application(
            application_id=application_id,
            pipeline=_text(section, "pipeline", application_id, path) or "given by the job's flags",
            schedule=_text(section, "schedule", application_id, path),
            config=path,
            exports=bool(_table(section, "settings", application_id, path).get(EXPORT_TARGET)),
            alerts=_table(section, "alerts", application_id, path),
            input=(_table(section, "input", application_id, path) if "input" in section else None),
        )
        for application_id, section in sections.items()
    )


def find_application(application_id: str, config: Path | str | None = None) -> Application:
    """Read one application of the file; ValueError names the ones it has."""
    applications = load_applications(config)
    for application in applications:
        if application.application_id == application_id:
            return application
    known = ", ".join(one.application_id for one in applications) or "none"
    raise ValueError(
        f"{applications_file(config)}: there is no [applications.{application_id}]; "
        f"the file has: {known}"
    )


def failure_callback(config: Path | str | None = None) -> Callable[..., Any] | None:
    """Import what `on_failure` of `[alerts]` names as "module:name": a notifier or a function."""
    path = applications_file(config)
    named = _document(path).get("alerts", {}).get("on_failure")
    if named is None:
        return None
    try:
        module, name = named.split(":")
        callback = getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(
            f"{path}: on_failure = {named!r} of [alerts] cannot be imported: {error}; name a "
            'notifier or a function as "module:name", importable by Airflow'
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
