"""`StateStoreJobOperator`: one submission of a job in jobs/ to Spark.

The job's summary file decides what happens next, because spark-submit hides exit codes:

    summary says           raised                 Airflow does
    success                nothing                success, asset event with the summary
    error, fail            AirflowFailException   fails at once
    error, retry           JobFailed              retries after the task's own delay
    error, retry_later     RetryLater      retries after RETRY_LATER_DELAY
    nothing at all         JobFailed              retries: the job was killed or never started
"""

import contextlib
import json
import os
import re
import shlex
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import psutil
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import Context, ExceptionRetryPolicy, RetryAction, RetryPolicy, RetryRule
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from statestore_airflow.applications import PROJECT_DIR, Application, applications_file
from statestore_airflow.policy import job_slots
from statestore_airflow.reports import (
    DATA_DOCS,
    REPORT,
    SPARK_UI,
    data_docs_address,
    publish_report,
    publish_spark_ui,
)

SUMMARY_KEY = "summary"
RETRY_LATER_DELAY = timedelta(minutes=5)
KILL_GRACE_S = 3.0
"""Airflow kills the task itself 5 s after asking it to stop: the job must be gone before."""

_MARK = "STATESTORE_SUBMISSION"
_LOCAL = re.compile(r"local(\[(?P<cores>\*|\d+)(?P<failures>,\d+)?\])?")
_RUN_TIME = re.compile(r"\{\{\s*(data_interval_start|data_interval_end|logical_date)\s*\}\}")


_ACTIONS = dict.fromkeys((2, 3, 4, 5, 12, 14, 15, 16, 17), "fail") | {
    6: "retry_later",
    13: "retry_later",
}
"""By exit code, where it is not to retry; the whole list: statestore/errors.py."""

# A run's JVM hands rows on and no more: compiling that at all tiers takes a tenth of two cores.
_JVM = "SPARK_SUBMIT_OPTS"
LITTLE_COMPILED = "-XX:TieredStopAtLevel=1"


class JobFailed(AirflowException):
    """The job did not finish, but the same run may succeed: nothing it committed is lost."""


class RetryLater(JobFailed):
    """Time helps, another attempt at once does not.

    Another process has the application, or an audit could not judge enough.
    """


RETRY_POLICY = ExceptionRetryPolicy(
    rules=[
        RetryRule(
            exception=RetryLater,
            action=RetryAction.RETRY,
            retry_delay=RETRY_LATER_DELAY,
            reason="time helps, a rerun at once does not",
        ),
        RetryRule(exception=JobFailed, action=RetryAction.RETRY, reason="a rerun may succeed"),
    ]
)


class StateStoreJobOperator(SparkSubmitOperator):
    """Run one application up to `until`, or continuously for `run_for`; or any `script` about it.

    `until` is "latest", a time, or one of the run's own times such as "{{ data_interval_end }}". A
    job that is no run has an `application_id`, which may be a template, and `flags` as a shell
    would split them, in place of a `target`.

    The summary goes to XCom (key "summary") after success and failure, and into the asset's event
    after success of a run. With STATESTORE_SUMMARY_FILE set it is also left in that file. The page
    it names, if any, is shown by the link "Report". Stopping the task ends every process of the job
    on this host.
    """

    template_fields: Sequence[str] = (
        *SparkSubmitOperator.template_fields,
        "until",
        "run_for",
        "application_id",
        "flags",
    )
    ui_color: str = "#cfe8dc"
    operator_extra_links = (REPORT, DATA_DOCS, SPARK_UI)

    def __init__(
        self,
        *,
        target: Application | None = None,
        until: str = "latest",
        run_for: str = "",
        application_id: str = "",
        flags: str = "",
        script: str = "jobs/process.py",
        retry_policy: RetryPolicy = RETRY_POLICY,
        **kwargs: Any,
    ) -> None:
        name = application_id if target is None else target.application_id
        self._asset = target and target.asset
        kwargs.setdefault("spark_binary", str(Path(sys.executable).with_name("spark-submit")))
        kwargs.setdefault("name", f"statestore-{name}")
        if self._asset:
            kwargs["outlets"] = [self._asset]
        conf = {"spark.executorEnv.PYTHONPATH": str(PROJECT_DIR)}
        self._cores = job_slots()
        if self._cores is not None:
            conf["spark.cores.max"] = str(self._cores)
        super().__init__(
            application=str(PROJECT_DIR / script),
            conf=conf,
            # Named above: what is only set in here a mapped task does not get.
            retry_policy=retry_policy,
            **kwargs,
        )
        self.application_id = name
        self.flags = flags
        self.config_file = str(applications_file() if target is None else target.config)
        self.until = until
        self.run_for = run_for
        self.links: dict[str, str] = {}
        self._submission = ""

    def execute(self, context: Context) -> None:
        """Submit, then act on the summary (table above)."""
        self._submission = uuid.uuid4().hex
        self.links[SPARK_UI.name] = publish_spark_ui(context)
        quick = {} if self._asset is None or _JVM in os.environ else {_JVM: LITTLE_COMPILED}
        given = self.env_vars or {}
        self.env_vars = job_environment() | quick | given | {_MARK: self._submission}
        failure: Exception | None = None
        with _summary_file() as summary_file:
            self.application_args = self._arguments(context, summary_file)
            try:
                # Relative paths of the applications file start at its folder.
                with contextlib.chdir(Path(self.config_file).parent):
                    super().execute(context)
            except (AirflowException, OSError) as error:
                failure = error
            summary = _read_summary(summary_file)
        if summary is None:
            self._raise_without_summary(failure)
        report = publish_report(context, summary.get("link"))
        if report is not None:
            self.links[REPORT.name] = summary["report"] = report
        self.links[DATA_DOCS.name] = data_docs_address(summary.get("data_docs"))
        context["ti"].xcom_push(key=SUMMARY_KEY, value=summary)
        if summary.get("error"):
            raise_from_error(self.log, self.application_id, summary["error"], failure)
        if failure is not None:
            message = f"{self.application_id}: finished and committed, then spark-submit failed"
            self.log.error("%s; the retry goes on from the committed offsets", message)
            raise JobFailed(message) from failure
        if self._asset:
            context["outlet_events"][self._asset].extra = {SUMMARY_KEY: summary}
        self.log.info("%s: %s", self.application_id, _figures(summary))

    def on_kill(self) -> None:
        """End driver JVM, Python driver, daemon and workers, politely first."""
        if self._submission:
            end_marked_processes(self._submission, grace_s=KILL_GRACE_S)
        if self._hook is not None:
            super().on_kill()

    def _get_hook(self) -> SparkSubmitHook:
        """The provider's, whose local master uses no more cores than the task takes slots."""
        hook = super()._get_hook()
        if self._cores is not None:
            hook._connection["master"] = bounded_master(hook._connection["master"], self._cores)  # noqa: SLF001  # it has no other way
        return hook

    def _arguments(self, context: Context, summary_file: Path) -> list[str]:
        arguments = ["--application-id", self.application_id, "--config", self.config_file]
        if self._asset is None:
            arguments += shlex.split(self.flags)
        elif self.run_for:
            if self.until != "latest":
                raise AirflowFailException(
                    f"{self.application_id}: until={self.until!r} and run_for={self.run_for!r} "
                    "exclude each other; trigger again with one of them"
                )
            arguments += ["--run-for", self.run_for]
        else:
            arguments += ["--until", self._resolved_until(context)]
        return [*arguments, "--summary-file", str(summary_file)]

    def _resolved_until(self, context: Context) -> str:
        match = _RUN_TIME.fullmatch(self.until.strip())
        if match is None:
            return self.until
        moment = dict(context).get(match[1])
        if not isinstance(moment, datetime):
            raise AirflowFailException(
                f"{self.application_id}: until={self.until!r}, but this run has no {match[1]}; "
                "trigger it with a logical date, or give a time"
            )
        return moment.isoformat()

    def _raise_without_summary(self, failure: Exception | None) -> NoReturn:
        # A driver ended by SIGTERM lets spark-submit exit with 0: the exit code decides nothing.
        message = f"{self.application_id}: ended without a summary (killed, never started, or "
        message += "driven from another host: deploy mode must be client)"
        self.log.error("%s; the retry goes on from the committed offsets", message)
        raise JobFailed(message) from failure


def bounded_master(master: str, cores: int) -> str:
    """A local master with at most so many cores; any other is bounded by its `spark.cores.max`."""
    match = _LOCAL.fullmatch(master)
    if match is None:
        return master
    asked = match["cores"] or "1"
    used = cores if asked == "*" else min(int(asked), cores)
    return f"local[{used}{match['failures'] or ''}]"


def raise_from_code(log: Any, application_id: str, what: str, code: int) -> NoReturn:
    """Raise what Airflow is to act on, for a command that ended without saying more than a code."""
    action = _ACTIONS.get(code, "retry")
    told = "it was killed" if code < 0 else "its log says why"
    error = {"class": what, "message": f"gave no result; {told}", "exit_code": code}
    raise_from_error(log, application_id, error | {"action": action}, None)


def raise_from_error(
    log: Any, application_id: str, error: Mapping[str, Any], failure: Exception | None
) -> NoReturn:
    """Raise what Airflow is to act on, for an error as jobs and commands report it."""
    message = f"{application_id}: {error.get('class')}: {error.get('message')}"
    message += f" (exit code {error.get('exit_code')})"
    match error.get("action"):
        case "fail":
            log.error("%s; not retried", message)
            raise AirflowFailException(message) from failure
        case "retry_later":
            log.error("%s; retried in %s", message, RETRY_LATER_DELAY)
            raise RetryLater(message) from failure
        case _:
            log.error("%s; retried", message)
            raise JobFailed(message) from failure


def end_marked_processes(mark: str, *, grace_s: float) -> None:
    """Terminate, then after `grace_s` kill, every process started by that submission.

    Found by an environment variable, as pyspark's daemon leaves the process group and orphans leave
    the process tree.
    """
    for finish in (psutil.Process.terminate, psutil.Process.kill):
        alive = list(_marked(mark))
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                finish(process)
        psutil.wait_procs(alive, timeout=grace_s)


def _marked(mark: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(_MARK) == mark:
                yield process


@contextlib.contextmanager
def _summary_file() -> Iterator[Path]:
    """Where the job writes its summary: STATESTORE_SUMMARY_FILE, else a temporary file."""
    kept = os.environ.get("STATESTORE_SUMMARY_FILE")
    if kept:
        path = Path(kept).resolve()
        path.unlink(missing_ok=True)
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="statestore-") as folder:
        yield Path(folder) / "summary.json"


def _read_summary(path: Path) -> dict[str, Any] | None:
    """None if the job left none, or died while writing it."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return summary if isinstance(summary, dict) else None


def _figures(summary: Mapping[str, Any]) -> str:
    if "verdict" in summary:
        return f"{summary['verdict']}; report: {summary.get('report') or summary.get('link')}"
    return (
        f"{summary.get('records_in')} records in, {summary.get('records_out')} out, "
        f"{summary.get('commits')} commits by {summary.get('stream_tasks')} stream tasks; "
        f"dropped {summary.get('dropped_records', 0)}; "
        f"restored {summary.get('restored_records')} in {summary.get('restore_seconds')} s; "
        f"{summary.get('held_records', 0)} held back until later input; "
        f"{'caught up' if summary.get('caught_up') else 'stopped before the end'}"
    )


def job_environment() -> dict[str, Any]:
    """Driver and workers run this interpreter and import this project."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    rest = [entry for entry in inherited if entry and entry != str(PROJECT_DIR)]
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([str(PROJECT_DIR), *rest]),
    }
