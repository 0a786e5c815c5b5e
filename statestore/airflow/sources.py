"""Where a program that an operator starts finds the settings of an application.

They come from the applications file, from arguments of the DAG file, and from a connection of
Airflow; the later ones take precedence, but arguments come before a connection. What a connection
says travels in environment variables, and the command line has only their names: neither Airflow's
logs and rendered fields nor a list of processes shows a secret.
"""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import Context

from statestore.airflow.dag_applications import (
    Application,
    applications_file,
    find_applications_file,
)
from statestore.airflow.hook import connection_settings
from statestore.settings import CONNECTION_VARIABLE, shows_secret


@dataclass(frozen=True)
class SettingsSource:
    """What one program is told about its application."""

    config: Path | None
    pipeline: str | None = None
    settings: Mapping[str, object] = field(default_factory=dict)
    conn_id: str | None = None

    def __post_init__(self) -> None:
        for key, value in self.settings.items():
            if shows_secret(key, value):
                raise ValueError(
                    f"the setting {key} has a secret, which the logs of Airflow and every list of "
                    "processes would show: put it into a connection of Airflow "
                    "(statestore_conn_id=), into the applications file, or pass '${VARIABLE}'"
                )

    @classmethod
    def of(cls, application: Application, conn_id: str | None = None) -> Self:
        """Tell what the DAG knows of its application."""
        file = application.config
        # The job takes the pipeline from the file, unless the DAG file names another.
        pipeline = application.pipeline
        return cls(file, pipeline, application.settings, conn_id)

    @classmethod
    def given(
        cls,
        config: str | None,
        pipeline: str | None,
        settings: Mapping[str, object] | None,
        conn_id: str | None,
    ) -> Self:
        """Tell what an operator got; without a pipeline or settings there must be a file."""
        found: Path | None = Path(config).resolve() if config else None
        if found is None and not pipeline and not settings:
            found = find_applications_file() if conn_id else applications_file()
        return cls(found, pipeline, settings or {}, conn_id)

    def arguments(self) -> dict[str, Any]:
        """Return this as arguments of an operator."""
        return {
            "config": str(self.config) if self.config else None,
            "pipeline": self.pipeline,
            "settings": dict(self.settings),
            "statestore_conn_id": self.conn_id,
        }

    def folder(self, context: Context) -> Path:
        """Return where the program starts: relative paths and imports begin in this folder.

        It is the folder of the applications file, or else of the DAG file.
        """
        if self.config is not None:
            if not self.config.is_file():
                raise AirflowFailException(
                    f"the applications file {self.config} is missing on this worker: deploy it "
                    "with the DAGs, or name another by STATESTORE_CONFIG or config="
                )
            return self.config.parent
        dag: Any = dict(context).get("dag")
        return Path(dag.fileloc).resolve().parent if dag is not None else Path.cwd()

    def flags(self, application_id: str, connected: Mapping[str, str]) -> list[str]:
        """Return the flags of the program; `connected`: what the connection says."""
        flags = ["--application-id", application_id]
        if self.config is not None:
            flags += ["--config", str(self.config)]
        said = {key: f"${{{variable_of(key)}}}" for key in connected}
        for key, value in {**said, **self.settings}.items():
            flags += ["--set", f"{key}={_text(value)}"]
        return flags

    def connected(self) -> dict[str, str]:
        """Return what the connection says, by key; AirflowFailException if it cannot be used."""
        return {} if self.conn_id is None else connection_settings(self.conn_id)

    def shown(self, connected: Mapping[str, str]) -> Self:
        """Return the same with what the connection says among the settings, for all to see.

        AirflowFailException if that has a secret.
        """
        secret = [key for key, value in connected.items() if shows_secret(key, value)]
        if secret:
            raise AirflowFailException(
                f"the connection {self.conn_id!r} has secrets ({', '.join(secret)}), which do not "
                "reach the workers of Spark Connect: name variables in the applications file "
                "('${VARIABLE}'), and set them for Airflow's workers and for the server's executors"
            )
        return replace(self, settings={**connected, **self.settings})

    def variables(self, connected: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables to which the flags refer, and the pipeline."""
        found = {variable_of(key): value for key, value in connected.items()}
        # A variable, as not every program has the flag --pipeline.
        return found | ({"STATESTORE_PIPELINE": self.pipeline} if self.pipeline else {})


def variable_of(key: str) -> str:
    """Return the environment variable that carries a setting of a connection."""
    return CONNECTION_VARIABLE + re.sub(r"\W", "_", key).upper()


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process, which its programs inherit, for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
