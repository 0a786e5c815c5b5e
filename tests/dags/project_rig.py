"""A copy of the project with a statestore.toml of its own: DAGs run in it, all files stay in it."""

import copy
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

ROOT = Path(__file__).resolve().parents[2]
_RUN_S = 900


def loaded(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> DagBag:
    """The project's DAGs for another applications file."""
    config = folder / "statestore.toml"
    config.write_text(text, encoding="utf-8")
    monkeypatch.setenv("STATESTORE_CONFIG", str(config))
    bag = DagBag(str(ROOT / "dags"))
    assert bag.import_errors == {}
    return bag


def params_of(dag: DAG, **conf: object) -> dict[str, Any]:
    """What a run triggered with `conf` sees; ParamValidationError where Airflow refuses it.

    By the stored form of the DAG, as the API has it, and then as a task of the run has it.
    """
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag))
    stored.params.deep_merge(conf).validate()
    params = copy.deepcopy(dag.params)
    params.update(conf)
    return params.validate()


class DagRun(NamedTuple):
    """How the newest run of a DAG ended."""

    code: int
    log: str
    states: dict[tuple[str, int], str]
    """Of task instances, by task and map index (-1: not mapped)."""
    xcoms: dict[tuple[str, str], Any]
    """By task and key."""


@dataclass(frozen=True)
class Project:
    """The copied folder; its own applications keep their state in it."""

    folder: Path
    environment: Mapping[str, str]

    @classmethod
    def copied(cls, folder: Path, applications: str | None = None) -> "Project":
        """Into `folder`; `applications`: the text of statestore.toml in place of the project's."""
        for name in ("dags", "scripts", "jobs"):
            shutil.copytree(ROOT / name, folder / name)
        for name in ("airflow.cfg", "statestore.toml"):
            shutil.copy(ROOT / name, folder)
        # Nothing of the tests' own Airflow.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "STATESTORE"))}
        kept["PYTHONPATH"] = str(ROOT)
        if applications is None:
            kept["STATESTORE_STATE_DIR"] = str(folder / "state")
        else:
            (folder / "statestore.toml").write_text(applications, encoding="utf-8")
        return cls(folder, kept)

    def airflow_local(
        self, *arguments: str, **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """scripts/airflow_local.py, its log in `stdout`."""
        return subprocess.run(
            [sys.executable, "scripts/airflow_local.py", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_RUN_S,
            check=False,
        )

    def run(self, dag_id: str, **conf: object) -> DagRun:
        """One run of a DAG in Airflow, with these Params."""
        done = self.airflow_local("run", dag_id, "--conf", json.dumps(conf))
        newest = "run_id = (select run_id from dag_run where dag_id = ? order by id desc limit 1)"
        tasks = f"select task_id, map_index, state from task_instance where {newest}"
        xcoms = f"select task_id, key, value from xcom where {newest}"
        with sqlite3.connect(self.folder / ".scratch" / "airflow" / "airflow.db") as database:
            states = {(name, at): state for name, at, state in database.execute(tasks, [dag_id])}
            found = {
                (name, key): _read(value) for name, key, value in database.execute(xcoms, [dag_id])
            }
        database.close()
        return DagRun(done.returncode, done.stdout, states, found)

    def switch_on(self, dag_id: str) -> None:
        """Make the DAG known to Airflow, and no longer paused."""
        for arguments in (["db", "migrate"], ["dags", "reserialize"], ["dags", "unpause", dag_id]):
            done = self.airflow_local("airflow", *arguments)
            assert done.returncode == 0, done.stdout[-6000:]

    def succeed(self, dag_id: str, **conf: object) -> DagRun:
        """`run`, which must end well."""
        ended = self.run(dag_id, **conf)
        assert ended.code == 0, ended.log[-6000:]
        return ended


def _read(value: str | None) -> Any:
    """An XCom, which Airflow keeps as JSON, or as JSON within JSON."""
    found = None if value is None else json.loads(value)
    return json.loads(found) if isinstance(found, str) and found[:1] in "[{" and found else found
