"""`StateStoreJobOperator`: one submission of a job to Spark.

The job's summary file decides what happens next, because spark-submit hides exit codes:

    the summary says       raised                 Airflow
    success                nothing                marks success; the asset's event has the summary
    an error               by its action          see retries.py
    nothing at all         JobFailed              retries: the job was killed or never started
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from airflow.providers.apache.spark.hooks.spark_connect import SparkConnectHook
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.common.compat.sdk import (
    AirflowException,
    AirflowFailException,
    AirflowNotFoundException,
    BaseHook,
)
from airflow.sdk import Connection, Context

from statestore.airflow.dag_applications import Application
from statestore.airflow.jobs import (
    KILL_GRACE_S,
    MARK,
    bounded_master,
    end_marked_processes,
    job_environment,
    job_path,
    logged,
    require_job,
)
from statestore.airflow.options import job_slots
from statestore.airflow.reports import (
    DATA_DOCS,
    REPORT,
    SPARK_UI,
    data_docs_address,
    publish_report,
    publish_spark_ui,
)
from statestore.airflow.retries import (
    RETRY_POLICY,
    JobFailed,
    raise_from_error,
    split_flags,
    with_retry_policy,
)
from statestore.airflow.sources import SettingsSource, environment
from statestore.extras import SPARK_REMOTE, spark_java_options
from statestore.model.left_out import LeftOut, left_out_lines
from statestore.model.texts import held_text

SUMMARY_KEY = "summary"
_RUN_TIME = re.compile(r"\{\{\s*(data_interval_start|data_interval_end|logical_date)\s*\}\}")

# A run's JVM only hands rows on: compiling that at all tiers would take a tenth of two cores.
_JVM = "SPARK_SUBMIT_OPTS"
LITTLE_COMPILED = "-XX:TieredStopAtLevel=1"

SPARK_CONNECTION = "spark_default"
WITHOUT_CONNECTION = "local[*,4]"
"""The master if nobody has made the connection `spark_default`: all cores, and four attempts."""


class StateStoreJobOperator(SparkSubmitOperator):
    """Run one application up to `until`, or continuously for `run_for`; or start another job.

    `until` is "latest", a time, or one of the run's own times such as "{{ data_interval_end }}". A
    job that is not a run takes an `application_id`, which may be a template, and `flags`, split as
    a shell would split them, in place of a `target`.

    `job` names a job of statestore.spark (process, export, audit), or a script by its path.
    `config`, `pipeline` and `settings` are for a job without a `target`; see
    StateStoreCommandOperator, also for `statestore_conn_id`. `conn_id` is the connection to Spark;
    if there is no connection `spark_default`, Spark runs on the worker. `conf` is added to the
    settings of Spark. A connection of the type Spark Connect names a server that is there already:
    the job is its client, without spark-submit and a JVM of its own.

    The summary goes to XCom (key "summary") after success and failure, and into the asset's event
    after success of a run. If STATESTORE_SUMMARY_FILE is set, the summary also stays in that file.
    The link "Report" shows the page that the summary names. Stopping the task ends every process
    of the job on this host.
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
        job: str = "process",
        config: str | None = None,
        pipeline: str | None = None,
        settings: Mapping[str, object] | None = None,
        statestore_conn_id: str | None = None,
        conn_id: str = SPARK_CONNECTION,
        conf: Mapping[str, str] | None = None,
        retry_policy: Any = RETRY_POLICY,
        **kwargs: Any,
    ) -> None:
        name = application_id if target is None else target.application_id
        self._asset = target and target.asset
        kwargs.setdefault("spark_binary", str(Path(sys.executable).with_name("spark-submit")))
        kwargs.setdefault("name", f"statestore-{name}")
        if self._asset:
            kwargs["outlets"] = [self._asset]
        self._cores = job_slots()
        source = (
            SettingsSource.given(config, pipeline, settings, statestore_conn_id)
            if target is None
            else SettingsSource.of(target, statestore_conn_id)
        )
        super().__init__(
            application=str(job_path(job, source.config.parent if source.config else Path())),
            conn_id=conn_id,
            conf=dict(conf or {}),
            # It is a parameter of ours, as a mapped task only gets what partial() was given.
            **with_retry_policy(retry_policy),
            **kwargs,
        )
        self.source = source
        self.application_id = name
        self.flags = flags
        self.job = job
        self.until = until
        self.run_for = run_for
        self.links: dict[str, str] = {}
        self.result: dict[str, Any] | None = None
        self._submission = ""

    def execute(self, context: Context) -> None:
        """Submit the job, then act on its summary as the module's table says."""
        folder = self.source.folder(context)
        self.application = str(job_path(self.job, folder))
        require_job(Path(self.application))
        source, connected, remote = self.source, self.source.connected(), self._remote()
        if remote is not None:
            source, connected = source.shown(connected), {}
        self._submission = uuid.uuid4().hex
        self.links[SPARK_UI.name] = publish_spark_ui(context)
        self.conf = self._spark_settings(folder) | dict(self.conf or {})
        options = [*([LITTLE_COMPILED] if self._asset else []), *spark_java_options()]
        quick = {_JVM: " ".join(options)} if options and _JVM not in os.environ else {}
        given = self.env_vars or {}
        self.env_vars = job_environment(folder) | quick | given | {MARK: self._submission}
        failure: Exception | None = None
        with _summary_file() as summary_file:
            flags = source.flags(self.application_id, connected)
            self.application_args = self._arguments(context, flags, summary_file)
            try:
                # Not in env_vars: for some masters these become part of the command line. Relative
                # paths start at the folder.
                with environment(source.variables(connected)), contextlib.chdir(folder):
                    if remote is None:
                        super().execute(context)
                    else:
                        self._run_connected(remote)
            except AirflowFailException:
                raise
            except (AirflowException, OSError) as error:
                failure = error
            summary = _read_summary(summary_file)
        if summary is None:
            self._raise_without_summary(failure)
        self.result = summary
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
        for line in _left_out(summary):
            self.log.warning("%s: %s", self.application_id, line)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002
        """Tell OpenLineage what was read and written; only its provider calls this."""
        from statestore.airflow.lineage import lineage_of

        return lineage_of(self.result)

    def on_kill(self) -> None:
        """Terminate driver JVM, Python driver, daemon and workers, then kill what is left."""
        if self._submission:
            end_marked_processes(self._submission, grace_s=KILL_GRACE_S)
        if self._hook is not None:
            super().on_kill()

    def _spark_settings(self, folder: Path) -> dict[str, str]:
        found = {"spark.executorEnv.PYTHONPATH": str(folder)}
        if self._cores is not None:
            found["spark.cores.max"] = str(self._cores)
        return found

    def _get_hook(self) -> SparkSubmitHook:
        """The provider's hook, whose local master uses no more cores than the task takes slots."""
        found = self._spark_connection()
        hook = super()._get_hook()
        connection = hook._connection  # noqa: SLF001  # the hook has no other way
        if found is None:
            connection["master"] = WITHOUT_CONNECTION
            self.log.info("there is no connection %s: Spark runs on this worker", self._conn_id)
        if self._cores is not None:
            connection["master"] = bounded_master(connection["master"], self._cores)
        return hook

    def _remote(self) -> str | None:
        """The address of the server of Spark Connect that the connection names; None: another."""
        connection = self._spark_connection()
        if connection is None or connection.conn_type != SparkConnectHook.conn_type:
            return None
        if self.conf:
            raise AirflowFailException(
                f"{self.application_id}: conf= has {', '.join(self.conf)}, and the connection "
                f"{self._conn_id!r} is one of Spark Connect: set them where its server starts"
            )
        if not connection.host or "/" in connection.host.removeprefix("sc://"):
            raise AirflowFailException(
                f"{self.application_id}: the connection {self._conn_id!r} of Spark Connect has the "
                f"host {connection.host!r}: it must be a host, as 'spark.example' or 'sc://…'"
            )
        return SparkConnectHook(self._conn_id).get_connection_url()

    def _run_connected(self, remote: str) -> None:
        """Run the job as a client of a server, whose address has a token and is no argument."""
        arguments = [sys.executable, self.application, *map(str, self.application_args or ())]
        self.log.info("as a client of Spark Connect: %s", shlex.join(arguments))
        process = subprocess.Popen(
            arguments,
            env={**os.environ, **(self.env_vars or {}), SPARK_REMOTE: remote},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        code = logged(self.log, process)
        if code:
            raise AirflowException(f"{self.application_id}: the job ended with code {code}")

    def _spark_connection(self) -> Connection | None:
        """The connection; None without the default; AirflowFailException if it was named."""
        try:
            return BaseHook.get_connection(self._conn_id)
        except AirflowNotFoundException as error:
            if self._conn_id == SPARK_CONNECTION:
                return None
            raise AirflowFailException(
                f"{self.application_id}: there is no connection {self._conn_id!r}: make it, with "
                f"Spark's master as its host, or leave it out to run Spark on the worker"
            ) from error

    def _arguments(self, context: Context, arguments: list[str], summary_file: Path) -> list[str]:
        if self._asset is None:
            arguments += split_flags(self.flags, self.application_id)
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
        # If SIGTERM ends the driver, spark-submit may exit with 0: the exit code decides nothing.
        message = f"{self.application_id}: ended without a summary (killed, never started, or "
        message += "driven from another host: deploy mode must be client)"
        self.log.error("%s; the retry goes on from the committed offsets", message)
        raise JobFailed(message) from failure


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
    """The summary; None if the job left none, or died while it wrote one."""
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return summary if isinstance(summary, dict) else None


def _left_out(summary: Mapping[str, Any]) -> list[str]:
    """Say which records are in no result, and why."""
    names = ("dropped", "dead_letters", "unmatched")
    return left_out_lines(*([LeftOut(**one) for one in summary.get(name, ())] for name in names))


def _figures(summary: Mapping[str, Any]) -> str:
    if "verdict" in summary:
        return f"{summary['verdict']}; report: {summary.get('report') or summary.get('link')}"
    return (
        f"{summary.get('records_in')} records in, {summary.get('records_out')} out, "
        f"{summary.get('commits')} commits by {summary.get('stream_tasks')} stream tasks; "
        f"dropped {summary.get('dropped_records', 0)}; "
        f"restored {summary.get('restored_records')} in {summary.get('restore_seconds')} s; "
        f"{'caught up' if summary.get('caught_up') else 'stopped before the end'}, "
        f"{held_text(summary.get('held_records', 0), summary.get('held'))}"
    )
