"""The applications file as the DAGs see it: names, schedules, and who is exported; no settings.

The job reads the rest of the file itself (`--application-id`, `--config`), so nothing secret passes
through Airflow.
"""

import os
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

from airflow.sdk import Asset

PROJECT_DIR = Path(__file__).resolve().parents[2]
SAMPLE_ID = "flights"
EXPORT_TARGET = "statestore.export.target"


class Application(NamedTuple):
    """One `[applications.<id>]`: what a DAG needs to be made for it."""

    application_id: str
    pipeline: str
    schedule: str | None
    config: Path
    exports: bool = False
    """Whether it says where its exports go."""

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
    try:
        sections = tomllib.loads(path.read_text(encoding="utf-8")).get("applications", {})
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(
            f"cannot read applications file {path}: {error}; set STATESTORE_CONFIG to another"
        ) from error
    return tuple(
        Application(
            application_id=application_id,
            pipeline=_text(section, "pipeline", application_id, path) or "given by the job's flags",
            schedule=_text(section, "schedule", application_id, path),
            config=path,
            exports=bool(_settings(section, application_id, path).get(EXPORT_TARGET)),
        )
        for application_id, section in sections.items()
    )


def _settings(section: dict[str, Any], application_id: str, path: Path) -> dict[str, Any]:
    found = section.get("settings", {})
    if isinstance(found, dict):
        return found
    raise ValueError(f"{path}: [applications.{application_id}.settings] must be a table")


def _text(section: dict[str, object], field: str, application_id: str, path: Path) -> str | None:
    value = section.get(field)
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"{path}: {field} of [applications.{application_id}] must be text")
