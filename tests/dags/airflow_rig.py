"""A whole Airflow as `airflow_local.py up` starts it, for a copy of the project, and its API."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import httpx
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from tests.builders import DEADLINE_S
from tests.dags.project_rig import Project

LOOK_S, RUN_S = 120, 600


def eventually(get: Callable[[], Any], seconds: float = LOOK_S) -> Any:
    """What it gives once it gives something."""

    def wanted() -> Any:
        found = get()
        assert found
        return found

    return Retrying(
        stop=stop_after_delay(seconds),
        wait=wait_fixed(0.3),
        retry=retry_if_exception_type(Exception),
        reraise=True,
    )(wanted)


class Api:
    """Airflow's REST API, logged in."""

    def __init__(self, url: str, passwords: dict[str, str]) -> None:
        self.url = url
        self.passwords = passwords
        self.client = self.as_user("admin")

    def as_user(self, name: str) -> httpx.Client:
        """A client with the token of that user."""
        login = {"username": name, "password": self.passwords[name]}
        with httpx.Client(base_url=self.url, trust_env=False, timeout=DEADLINE_S) as client:
            token = client.post("/auth/token", json=login).raise_for_status().json()["access_token"]
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.Client(base_url=self.url, trust_env=False, timeout=DEADLINE_S, headers=headers)

    def close(self) -> None:
        """Let go of it."""
        self.client.close()

    def switch_on(self, dag_id: str) -> None:
        """Unpause a DAG, once Airflow knows it."""
        path = f"/api/v2/dags/{dag_id}"
        eventually(lambda: self.client.patch(path, json={"is_paused": False}).is_success)

    def trigger(self, dag_id: str, **conf: object) -> httpx.Response:
        """As the form does."""
        body = {"logical_date": None, "conf": conf}
        return self.client.post(f"/api/v2/dags/{dag_id}/dagRuns", json=body)

    def ended(self, dag_id: str, **conf: object) -> dict[str, Any]:
        """A run triggered with these Params, at its end."""
        run_id = self.trigger(dag_id, **conf).raise_for_status().json()["dag_run_id"]
        path = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}"

        def run() -> Any:
            found = self.client.get(path).json()
            return found if found["state"] in {"success", "failed"} else None

        found: dict[str, Any] = eventually(run, RUN_S)
        return found

    def tasks(self, run: dict[str, Any]) -> dict[tuple[str, int], dict[str, Any]]:
        """The task instances of a run, by task and map index."""
        path = f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances"
        found = self.client.get(path, params={"limit": 200}).json()["task_instances"]
        return {(one["task_id"], one["map_index"]): one for one in found}

    def links(self, run: dict[str, Any], task_id: str, map_index: int = -1) -> dict[str, Any]:
        """The buttons of a task instance."""
        path = f"/api/v2/dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances/{task_id}"
        answer = self.client.get(f"{path}/links", params={"map_index": map_index})
        found: dict[str, Any] = answer.raise_for_status().json()["extra_links"]
        return found


@contextmanager
def airflow_up(project: Project, **environment: str) -> Iterator[Api]:
    """Up inside `with`, down after it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment |= {"AIRFLOW__API__PORT": port}
    try:
        started = project.airflow_local("up", **environment)
        assert started.returncode == 0, started.stdout[-4000:]
        home = project.folder / ".scratch" / "airflow"
        generated = home / "simple_auth_manager_passwords.json.generated"
        passwords = json.loads(generated.read_text(encoding="utf-8"))
        with closing(Api(f"http://127.0.0.1:{port}", passwords)) as api:
            yield api
    finally:
        project.airflow_local("down", **environment)
