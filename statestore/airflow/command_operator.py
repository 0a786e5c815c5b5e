"""`StateStoreCommandOperator`: one call of the `statestore` command, which needs no Spark.

The command's JSON line goes to XCom, after a failure too. retries.py says what Airflow does after a
failure.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from airflow.sdk import BaseOperator, Context

from statestore.airflow.jobs import (
    KILL_GRACE_S,
    STATESTORE,
    job_environment,
    job_path,
    logged,
    require_job,
)
from statestore.airflow.reports import REPORT, publish_report
from statestore.airflow.retries import (
    RETRY_POLICY,
    raise_from_code,
    raise_from_error,
    split_flags,
    with_retry_policy,
)
from statestore.airflow.sources import SettingsSource

RESULT_KEY = "result"


class StateStoreCommandOperator(BaseOperator):
    """`statestore <command> --json` for one application; `flags` are split as a shell splits them.

    The settings come from the applications file `config` (found as `applications_file` finds it),
    from the connection `statestore_conn_id`, and from `settings`, the later ones taking precedence;
    if there is a `pipeline` or there are `settings`, there need not be a file.

    `job`, unless it is empty, is a job that takes the same flags and runs in place of the command:
    one of statestore.spark by its name, or a script by its path. The operator returns the JSON
    line, so that it is the task's XCom; after a failure the line is the XCom "result".
    """

    template_fields: Sequence[str] = ("application_id", "flags", "job")
    ui_color: str = "#dfe8cf"
    operator_extra_links = (REPORT,)

    def __init__(
        self,
        *,
        command: str,
        application_id: str,
        flags: str = "",
        job: str = "",
        config: str | None = None,
        pipeline: str | None = None,
        settings: Mapping[str, object] | None = None,
        statestore_conn_id: str | None = None,
        retry_policy: Any = RETRY_POLICY,
        **kwargs: Any,
    ) -> None:
        # It is a parameter of ours, as a mapped task only gets what partial() was given.
        super().__init__(**with_retry_policy(retry_policy), **kwargs)
        self.command = command
        self.application_id = application_id
        self.flags = flags
        self.job = job
        self.source = SettingsSource.given(config, pipeline, settings, statestore_conn_id)
        self.links: dict[str, str] = {}
        self.result: dict[str, Any] | None = None
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the command to its end; its log becomes the task's log."""
        folder = self.source.folder(context)
        program = [*STATESTORE, *split_flags(self.command, self.application_id)]
        if self.job:
            path = job_path(self.job, folder)
            require_job(path)
            program = [sys.executable, str(path)]
        connected = self.source.connected()
        arguments = [*program, *split_flags(self.flags, self.application_id)]
        arguments += [*self.source.flags(self.application_id, connected), "--json"]
        self.log.info("%s", shlex.join(arguments))
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
            code = self._run(arguments, folder, self.source.variables(connected), out)
            out.seek(0)
            result = _last_object(out.read())
        if result is None:
            raise_from_code(self.log, self.application_id, self.command, code)
        self.result = result
        report = publish_report(context, result.get("report"))
        if report is not None:
            self.links[REPORT.name] = report
        if result.get("error"):
            context["ti"].xcom_push(key=RESULT_KEY, value=result)
            raise_from_error(self.log, self.application_id, result["error"], None)
        if code:
            raise_from_code(self.log, self.application_id, self.command, code)
        return result

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Tell OpenLineage what was read and written; only its provider calls this."""
        from statestore.airflow.lineage import lineage_of

        return lineage_of(self.result)

    def on_kill(self) -> None:
        """Terminate the command, then kill it; the next call finishes what it had begun."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(KILL_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _run(
        self, arguments: list[str], folder: Path, variables: Mapping[str, str], out: IO[str]
    ) -> int:
        self._process = subprocess.Popen(
            arguments,
            cwd=folder,
            env={**os.environ, **job_environment(folder), **variables},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        return logged(self.log, self._process)


def _last_object(text: str) -> dict[str, Any] | None:
    """The JSON line; None if it is missing or cut short."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return None
