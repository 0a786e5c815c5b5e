"""Applications as DAGs see them: from the applications file, or from arguments of a DAG file.

Jobs and commands read the settings from the file by themselves (`--application-id`, `--config`),
so no secret of the file passes through Airflow.
"""

import importlib
import inspect
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from airflow.providers.common.compat.sdk import conf
from airflow.sdk import Asset

from statestore.settings import shows_secret

FILE_NAME = "statestore.toml"
EXPORT_TARGET = "statestore.export.target"
SPAN = r"^[1-9][0-9]*(ms|s|m|h|d)?(?![\s\S])"
"""A time span; a number without a unit is in seconds."""
_OURS = Path(__file__).parent
_ID = re.compile(r"(?!\.)[A-Za-z0-9._-]{1,200}")
_PREFIX = re.compile(r"[A-Za-z0-9._-]{0,200}")


@dataclass(frozen=True, kw_only=True)
class Application:
    """One `[applications.<id>]` of an applications file, or an application without such a file.

    Without a file, `pipeline` names the function that returns the topology, as "module:function";
    the module may lie beside the DAG file. `settings` take precedence over those of the file. A
    value may be `${NAME}`, which the job replaces by that environment variable.
    """

    application_id: str
    pipeline: str | None = None
    schedule: str | None = None
    config: Path | None = None
    """The applications file that names this application; None if there is none."""
    settings: Mapping[str, object] = field(default_factory=dict)
    exports: bool = False
    """Whether the application names a target for its exports."""
    alerts: Mapping[str, Any] = field(default_factory=dict)
    """The table `[applications.<id>.alerts]`, unchanged."""
    input: Mapping[str, Any] | None = None
    """The table `[applications.<id>.input]`, unchanged; None if there is none."""
    dag_prefix: str | None = None
    """What the ids of its DAGs begin with; None for the application's id and two underscores."""

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.application_id):
            raise ValueError(
                f"{self.application_id!r} is not an application id: use up to 200 letters, digits, "
                "dots, dashes and underscores, and no dot at the start"
            )
        if not _PREFIX.fullmatch(self.dag_prefix or ""):
            raise ValueError(
                f"{self.application_id}: dag_prefix {self.dag_prefix!r} has other characters than "
                "letters, digits, dots, dashes and underscores, which ids of DAGs cannot have"
            )
        for key, value in self.settings.items():
            if shows_secret(key, value):
                raise ValueError(
                    f"{self.application_id}: the setting {key} is a secret, and a DAG file is not "
                    "a place for one: put it into a connection of Airflow (connection=), into the "
                    "applications file, or pass '${VARIABLE}'"
                )
        if self.settings.get(EXPORT_TARGET):
            object.__setattr__(self, "exports", True)

    def dag_id(self, verb: str) -> str:
        """The id of a DAG of this application, such as `orders__micro_batches`."""
        prefix = f"{self.application_id}__" if self.dag_prefix is None else self.dag_prefix
        return prefix + verb

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

    `config` comes first, then the variable STATESTORE_CONFIG, then a `statestore.toml` in the
    folder of the DAG file, in Airflow's folder of DAGs, and in the folder above either. ValueError
    names the places without a file.
    """
    found = find_applications_file(config)
    if found is not None:
        return found
    searched = " nor ".join(str(folder / FILE_NAME) for folder in _folders())
    raise ValueError(
        f"there is no applications file: neither {searched} exists; set STATESTORE_CONFIG to its "
        "path, pass config=, or describe the application by pipeline= and settings="
    )


def find_applications_file(config: Path | str | None = None) -> Path | None:
    """Return the path that `applications_file` finds, or None."""
    named = config or os.environ.get("STATESTORE_CONFIG")
    if named:
        return Path(named).resolve()
    places = (folder / FILE_NAME for folder in _folders())
    return next((place for place in places if place.is_file()), None)


def load_applications(config: Path | str | None = None) -> tuple[Application, ...]:
    """Read every application of the file, in its order; ValueError names the file and the field."""
    path = applications_file(config)
    sections = _document(path).get("applications", {})
    if not isinstance(sections, dict) or not all(isinstance(s, dict) for s in sections.values()):
        raise ValueError(f"{path}: [applications] must have a table [applications.<id>] for each")
    return tuple(
        Application(
            application_id=application_id,
            pipeline=_text(section, "pipeline", application_id, path),
            schedule=_text(section, "schedule", application_id, path),
            dag_prefix=_text(section, "dag_prefix", application_id, path),
            config=path,
            exports=bool(_flat(_table(section, "settings", application_id, path), EXPORT_TARGET)),
            alerts=_table(section, "alerts", application_id, path),
            input=(_table(section, "input", application_id, path) if "input" in section else None),
        )
        for application_id, section in sections.items()
    )


def find_application(
    application: str | Application,
    *,
    config: Path | str | None = None,
    pipeline: str | None = None,
    settings: Mapping[str, object] | None = None,
    connected: bool = False,
) -> Application:
    """Find one application by its id, and add what the DAG file says about it.

    It may be missing in the file if its `pipeline` is given, or if no file was named and its
    settings come from elsewhere (`connected`). ValueError names the applications of the file.
    """
    if not isinstance(application, Application):
        application = _named(application, config, known_otherwise=bool(pipeline) or connected)
    elif config is not None:
        raise ValueError(
            f"{application.application_id}: pass config= to the application, not to the DAG of it"
        )
    return replace(
        application,
        pipeline=pipeline or application.pipeline,
        settings={**application.settings, **(settings or {})},
    )


def failure_callback(config: Path | None) -> Callable[..., Any] | None:
    """Import what `on_failure` of `[alerts]` names as "module:name": a notifier or a function."""
    named = None if config is None else _document(config).get("alerts", {}).get("on_failure")
    if named is None:
        return None
    try:
        module, name = named.split(":")
        callback = getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError, ValueError) as error:
        raise ValueError(
            f"{config}: on_failure = {named!r} of [alerts] cannot be imported: {error}; name a "
            'notifier or a function as "module:name", importable by Airflow'
        ) from error
    return cast("Callable[..., Any]", callback)


def _named(application_id: str, config: Path | str | None, *, known_otherwise: bool) -> Application:
    path = find_applications_file(config)
    if path is None and known_otherwise:
        return Application(application_id=application_id)
    applications = load_applications(applications_file(config))
    for application in applications:
        if application.application_id == application_id:
            return application
    if known_otherwise and config is None:
        return Application(application_id=application_id)
    known = ", ".join(one.application_id for one in applications) or "none"
    raise ValueError(
        f"{path}: there is no [applications.{application_id}]; the file has: {known}; name one of "
        "these, or describe the application by pipeline= and settings="
    )


def _folders() -> list[Path]:
    """Where an applications file is looked for, without repetitions."""
    beside = _calling_folder()
    dags = Path(conf.get("core", "dags_folder")).resolve()
    folders = [beside, beside.parent] if beside else []
    return list(dict.fromkeys([*folders, dags, dags.parent]))


def _calling_folder() -> Path | None:
    """The folder of the DAG file that called one of our functions."""
    for file in _frames():
        if not file.is_relative_to(_OURS):
            return file.parent if file.is_file() else None
    return None


def _frames() -> Iterator[Path]:
    frame = inspect.currentframe()
    while frame is not None:
        yield Path(frame.f_code.co_filename).resolve()
        frame = frame.f_back


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(
            f"cannot read applications file {path}: {error}; set STATESTORE_CONFIG to another"
        ) from error


def _table(section: dict[str, Any], name: str, application_id: str, path: Path) -> dict[str, Any]:
    found = section.get(name, {})
    if isinstance(found, dict):
        return found
    raise ValueError(f"{path}: [applications.{application_id}.{name}] must be a table")


def _flat(table: Mapping[str, Any], key: str) -> object:
    """The value of a dotted key; TOML parses it into nested tables unless it is quoted."""
    if key in table:
        return table[key]
    for name, value in table.items():
        if isinstance(value, Mapping) and key.startswith(f"{name}."):
            return _flat(value, key.removeprefix(f"{name}."))
    return None


def _text(section: dict[str, object], name: str, application_id: str, path: Path) -> str | None:
    value = section.get(name)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{path}: {name} of [applications.{application_id}] must be text")


def ids_of(applications: Iterable[Application]) -> list[str]:
    """The ids of applications, in their order."""
    return [application.application_id for application in applications]
