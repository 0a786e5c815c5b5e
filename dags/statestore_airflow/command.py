"""`StateStoreCommandOperator`: one call of the `statestore` command, which needs no Spark.

Its one JSON line goes to XCom, after failures too; what Airflow does next is the same as for a job
(table in operator.py).
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from airflow.sdk import BaseOperator, Context, RetryPolicy

from statestore_airflow.applications import PROJECT_DIR, applications_file
from statestore_airflow.operator import (
    KILL_GRACE_S,
    RETRY_POLICY,
    job_environment,
    raise_from_code,
    raise_from_error,
)
from statestore_airflow.reports import REPORT, publish_report

RESULT_KEY = "result"
STATESTORE = Path(sys.executable).with_name("statestore")


class StateStoreCommandOperator(BaseOperator):
    """`statestore <command> --json` for one application; `flags` as a shell would split them.

    `script`: a job of this project that takes the same flags, run in the command's place unless
    empty. Returns the JSON line, so that it is the task's XCom; after a failure under "result".
    """

    template_fields: Sequence[str] = ("application_id", "flags", "script")
    ui_color: str = "#dfe8cf"
    operator_extra_links = (REPORT,)

    def __init__(
        self,
        *,
        command: str,
        application_id: str,
        flags: str = "",
        script: str = "",
        retry_policy: RetryPolicy = RETRY_POLICY,
        **kwargs: Any,
    ) -> None:
        # Named above: what is only set in here a mapped task does not get.
        super().__init__(retry_policy=retry_policy, **kwargs)
        self.command = command
        self.application_id = application_id
        self.flags = flags
        self.script = script
        self.links: dict[str, str] = {}
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Run it to its end; its log becomes the task's."""
        config = applications_file()
        program = [str(STATESTORE), *shlex.split(self.command)]
        if self.script:
            program = [sys.executable, str(PROJECT_DIR / self.script)]
        arguments = [*program, *shlex.split(self.flags)]
        arguments += ["--application-id", self.application_id, "--config", str(config), "--json"]
        self.log.info("%s", shlex.join(arguments))
        with tempfile.TemporaryFile("w+", encoding="utf-8") as out:
            code = self._run(arguments, config.parent, out)
            out.seek(0)
            result = _last_object(out.read())
        if result is None:
            raise_from_code(self.log, self.application_id, self.command, code)
        report = publish_report(context, result.get("report"))
        if report is not None:
            self.links[REPORT.name] = report
        if result.get("error"):
            context["ti"].xcom_push(key=RESULT_KEY, value=result)
            raise_from_error(self.log, self.application_id, result["error"], None)
        if code:
            raise_from_code(self.log, self.application_id, self.command, code)
        return result

    def on_kill(self) -> None:
        """End it, politely first: what it had begun is finished by the next call."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(KILL_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _run(self, arguments: list[str], folder: Path, out: IO[str]) -> int:
        self._process = subprocess.Popen(
            arguments,
            cwd=folder,  # relative paths of the applications file start at its folder
            env={**os.environ, **job_environment()},
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
        )
        with self._process as process:
            for line in process.stderr or ():
                self.log.info("%s", line.rstrip())
        return process.returncode


def _last_object(text: str) -> dict[str, Any] | None:
    """The JSON line; None if it is missing or torn."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict):
                return found
    return None
