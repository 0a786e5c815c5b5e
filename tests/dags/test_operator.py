"""StateStoreJobOperator against a program that stands where spark-submit stands."""

import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

import psutil
import pytest
from airflow.sdk import Context
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.sdk.execution_time.context import OutletEventAccessors
from tenacity import Retrying, retry_if_not_result, stop_after_delay, wait_fixed

from statestore import errors
from statestore.airflow import Application, StateStoreCommandOperator, StateStoreJobOperator
from statestore.airflow.operator import LITTLE_COMPILED
from statestore.airflow.reports import PAGE_MAX_BYTES, data_docs_address
from statestore.airflow.retries import RETRY_LATER_DELAY, JobFailed, RetryLater, split_flags

pytestmark = pytest.mark.airflow

DEADLINE_S = 60
JOBS = Path(errors.__file__).with_name("spark")
TASKS: list[StateStoreJobOperator] = []
NO_SUMMARY = "none"
DONE = {
    "application_id": "flights",
    "stream_tasks": 8,
    "records_in": 336_776,
    "records_out": 5_000,
    "dropped_records": 4,
    "dropped": [{"node": "hourly", "reason": "late", "records": 4, "records_in": 16}],
    "commits": 40,
    "restored_records": 0,
    "restore_seconds": 0.0,
    "held_records": 12,
    "held": {"near": 2, "fewer-buffer": 10},
    "caught_up": True,
    "error": None,
}

# It keeps what it was given, writes the summary it was told to write, and ends as it was told to.
SUBMIT = """\
#!{python}
import json, os, sys
from pathlib import Path
here = Path(__file__).parent
told = json.loads((here / "told.json").read_text())
given = dict(argv=sys.argv[1:], cwd=os.getcwd(), env=dict(os.environ))
(here / "given.json").write_text(json.dumps(given))
print("a line of the job", flush=True)
if told["summary"] != "none":
    path = Path(sys.argv[sys.argv.index("--summary-file") + 1])
    path.write_text(told["summary"])
sys.exit(told["exit_code"])
"""

# A grandchild in a session of its own that ignores SIGTERM, as a stuck worker might.
STUBBORN = """\
#!{python}
import subprocess, sys
from pathlib import Path
here = Path(__file__).parent
code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True);"
code += "signal.pause()"
child = subprocess.Popen(
    [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE
)
child.stdout.readline()
(here / "child.tmp").write_text(str(child.pid))
(here / "child.tmp").rename(here / "child.pid")
child.wait()
"""


class TaskInstance:
    """The part of Airflow's task instance an operator sees here: XCom."""

    def __init__(self) -> None:
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


class Run(NamedTuple):
    """What one execution saw and left."""

    raised: Exception | None
    pushed: Mapping[str, Any]
    event: Mapping[str, Any]
    given: Mapping[str, Any]

    @property
    def arguments(self) -> list[str]:
        argv = self.given["argv"]
        return list(argv[argv.index(str(JOBS / "process.py")) + 1 :])


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_DEFAULT",
        json.dumps(
            {"conn_type": "spark", "host": "local[2,4]", "extra": {"deploy-mode": "client"}}
        ),
    )
    monkeypatch.delenv("STATESTORE_SUMMARY_FILE", raising=False)


@pytest.fixture
def target(tmp_path: Path) -> Application:
    config = tmp_path / "statestore.toml"
    config.touch()
    return Application(application_id="flights", pipeline="m:f", config=config)


@pytest.fixture(autouse=True)
def pipes() -> Iterator[None]:
    """Close what the provider leaves open until its process ends."""
    yield
    while TASKS:
        hook = TASKS.pop()._hook
        if hook is not None and hook._submit_sp is not None:
            hook._submit_sp.stdout.close()


def folder_of(target: Application | None) -> Path:
    """The folder of its applications file, if it has any."""
    return target.config.parent if target and target.config else Path()


def operator(
    target: Application | None,
    program: str = SUBMIT,
    *,
    folder: Path | None = None,
    **fields: Any,
) -> StateStoreJobOperator:
    """`folder`: where the program goes, if not beside the target's configuration."""
    folder = folder or folder_of(target)
    binary = folder / "spark-submit"
    binary.write_text(program.format(python=sys.executable), encoding="utf-8")
    binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
    fields = {"task_id": "process", "spark_binary": str(binary)} | fields
    TASKS.append(StateStoreJobOperator(target=target, **fields))
    return TASKS[-1]


@pytest.fixture
def run(target: Application) -> Callable[..., Run]:
    def run(
        summary: Mapping[str, Any] | str = DONE,
        exit_code: int = 0,
        times: Mapping[str, datetime] | None = None,
        **fields: Any,
    ) -> Run:
        folder = folder_of(target)
        text = summary if isinstance(summary, str) else json.dumps(summary)
        told = {"summary": text, "exit_code": exit_code}
        (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")
        task = operator(target, **fields)
        instance, events = TaskInstance(), OutletEventAccessors()
        context = {"ti": instance, "outlet_events": events, **(times or {})}
        raised: Exception | None = None
        try:
            task.execute(cast("Context", context))
        except AirflowException as error:
            raised = error
        given = folder / "given.json"
        return Run(
            raised,
            instance.pushed,
            events[task.outlets[0]].extra,
            json.loads(given.read_text(encoding="utf-8")) if given.exists() else {},
        )

    return run


def failed(action: str, exit_code: int = 6) -> dict[str, Any]:
    error = {"class": "Locked", "message": "held by host b", "exit_code": exit_code}
    return {**DONE, "error": {**error, "action": action}}


def test_a_job_does_not_start_where_two_versions_of_pyspark_are_mixed(
    run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "pyspark_client-4.2.99.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: pyspark-client\nVersion: 4.2.99")
    monkeypatch.syspath_prepend(tmp_path)
    refused = run()
    assert isinstance(refused.raised, AirflowFailException)
    assert "pyspark-client 4.2.99 are installed into one folder" in str(refused.raised)
    assert refused.given == {}


def test_a_job_that_is_no_run_gets_its_flags_and_makes_no_asset(target: Application) -> None:
    audit = {"application_id": "flights", "verdict": "right", "link": "file:///docs", "error": None}
    folder = folder_of(target)
    told = {"summary": json.dumps(audit), "exit_code": 0}
    (folder / "told.json").write_text(json.dumps(told), encoding="utf-8")
    # As Airflow makes the mapped ones: with outlets, though there are none.
    task = operator(
        None,
        folder=folder,
        job="audit",
        config=str(target.config),
        application_id="flights",
        flags="--store counts --store 'of two'",
        outlets=[],
    )
    instance = TaskInstance()
    task.execute(cast("Context", {"ti": instance}))
    assert task.outlets == []
    assert instance.pushed == {"summary": audit}
    argv = json.loads((folder / "given.json").read_text(encoding="utf-8"))["argv"]
    arguments = argv[argv.index(str(JOBS / "audit.py")) + 1 :]
    assert arguments[:2] == ["--application-id", "flights"]
    flags = ["--store", "counts", "--store", "of two", "--summary-file"]
    assert arguments[4:-1] == flags


@pytest.mark.parametrize(
    ("served", "begin", "shown"),
    [
        (None, "file:///s/shop/audits/17/index.html", ""),
        ("https://docs.example/", None, ""),
        (
            "https://docs.example/x/",
            "file:///a%20b/c/shop/audits/17/index.html",
            "https://docs.example/x/shop/audits/17/index.html",
        ),
    ],
)
def test_data_docs_are_linked_where_somebody_serves_them(
    served: str | None, begin: str | None, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STATESTORE_DATA_DOCS", raising=False)
    if served is not None:
        monkeypatch.setenv("STATESTORE_DATA_DOCS", served)
    assert data_docs_address(begin) == shown


@pytest.mark.parametrize("what", ["nowhere", "not text", "too large"])
def test_a_report_that_cannot_be_shown_fails_no_task(
    what: str, run: Callable[..., Run], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    if what != "nowhere":
        page.write_bytes(b"\xff" if what == "not text" else b"x" * (PAGE_MAX_BYTES + 1))
    done = run({**DONE, "link": page.as_uri()})
    assert done.raised is None
    assert set(done.pushed) == {"summary"}
    assert "report" not in done.pushed["summary"]


def test_success_gives_the_summary_to_xcom_and_to_the_assets_event(run: Callable[..., Run]) -> None:
    done = run()
    assert done.raised is None
    assert done.pushed == {"summary": DONE}
    assert done.event == {"summary": DONE}


@pytest.mark.parametrize(
    ("action", "raised"),
    [
        ("fail", AirflowFailException),
        ("retry", JobFailed),
        ("retry_later", RetryLater),
        ("an action of a later version", JobFailed),
    ],
)
@pytest.mark.parametrize("exit_code", [0, 6])
def test_the_summarys_action_decides_whatever_spark_submit_returned(
    run: Callable[..., Run], action: str, raised: type[Exception], exit_code: int
) -> None:
    done = run(failed(action), exit_code)
    assert type(done.raised) is raised
    assert str(done.raised) == "flights: Locked: held by host b (exit code 6)"
    assert done.pushed == {"summary": failed(action)}
    assert done.event == {}


@pytest.mark.parametrize("exit_code", [0, 1, 137])
@pytest.mark.parametrize("left", [NO_SUMMARY, "", '{"records_in": 3', "[1]"])
def test_a_job_killed_without_a_whole_summary_is_retried(
    run: Callable[..., Run], left: str, exit_code: int
) -> None:
    done = run(left, exit_code)
    assert type(done.raised) is JobFailed
    assert "ended without a summary" in str(done.raised)
    assert done.pushed == {}


def test_spark_submit_failing_after_a_good_summary_is_retried(run: Callable[..., Run]) -> None:
    done = run(DONE, exit_code=1)
    assert type(done.raised) is JobFailed
    assert "finished and committed" in str(done.raised)
    assert done.event == {}


def test_a_missing_spark_submit_is_retried_and_named(run: Callable[..., Run]) -> None:
    done = run(spark_binary="/nowhere/spark-submit")
    assert type(done.raised) is JobFailed
    assert "/nowhere/spark-submit" in str(done.raised.__cause__)


def test_retries_wait_longer_for_a_locked_application(target: Application) -> None:
    policy = operator(target).retry_policy
    assert policy is not None
    locked, failure = (
        policy.evaluate(error, 1, 3) for error in (RetryLater("held"), JobFailed("gone"))
    )
    assert (locked.action, locked.retry_delay) == (RetryAction.RETRY, RETRY_LATER_DELAY)
    assert (failure.action, failure.retry_delay) == (RetryAction.RETRY, None)


def test_the_job_is_submitted_by_path_with_the_flags_of_the_interface(
    run: Callable[..., Run], target: Application
) -> None:
    done = run()
    flags = dict(zip(done.arguments[::2], done.arguments[1::2], strict=True))
    assert flags.pop("--summary-file")
    assert flags == {
        "--application-id": "flights",
        "--config": str(target.config),
        "--until": "latest",
    }


def test_run_for_takes_the_place_of_until(run: Callable[..., Run]) -> None:
    arguments = run(run_for="5m").arguments
    assert arguments[4:6] == ["--run-for", "5m"]
    assert "--until" not in arguments


def test_until_and_run_for_together_fail_before_anything_starts(run: Callable[..., Run]) -> None:
    done = run(until="2013-07-01", run_for="5m")
    assert type(done.raised) is AirflowFailException
    assert "exclude each other" in str(done.raised)
    assert done.given == {}


def test_until_may_be_a_time_of_the_run(run: Callable[..., Run]) -> None:
    end = datetime(2013, 7, 1, 6, tzinfo=UTC)
    arguments = run(until="{{ data_interval_end }}", times={"data_interval_end": end}).arguments
    assert arguments[4:6] == ["--until", "2013-07-01T06:00:00+00:00"]


def test_a_time_the_run_does_not_have_fails_with_the_way_out(run: Callable[..., Run]) -> None:
    done = run(until="{{ logical_date }}")
    assert type(done.raised) is AirflowFailException
    assert "has no logical_date; trigger it with a logical date" in str(done.raised)


def test_a_job_may_be_a_script_beside_the_applications_file(
    run: Callable[..., Run], target: Application
) -> None:
    script = folder_of(target) / "jobs" / "mine.py"
    missing = run(job="jobs/mine.py")
    assert type(missing.raised) is AirflowFailException
    assert str(script) in str(missing.raised)
    assert missing.given == {}, "nothing is submitted"
    script.parent.mkdir()
    script.touch()
    assert str(script) in run(job="jobs/mine.py").given["argv"]


def test_settings_of_spark_are_added_to_those_of_the_job(run: Callable[..., Run]) -> None:
    argv = run(conf={"spark.executor.memory": "2g"}).given["argv"]
    assert "spark.executor.memory=2g" in argv
    assert any(setting.startswith("spark.executorEnv.PYTHONPATH=") for setting in argv)


def test_the_job_runs_this_interpreter_and_imports_pipelines_beside_its_applications_file(
    run: Callable[..., Run], target: Application
) -> None:
    given = run().given
    assert given["cwd"] == str(folder_of(target))
    assert given["env"]["PYSPARK_PYTHON"] == given["env"]["PYSPARK_DRIVER_PYTHON"] == sys.executable
    assert given["env"]["PYTHONPATH"].split(os.pathsep)[0] == str(folder_of(target))
    assert f"spark.executorEnv.PYTHONPATH={folder_of(target)}" in given["argv"]
    assert given["argv"][:2] == ["--master", "local[2,4]"]


@pytest.mark.parametrize(
    ("slots", "master", "submitted"),
    [
        (None, "local[*,4]", "local[*,4]"),
        ("3", "local[*,4]", "local[3,4]"),
        ("3", "local[*]", "local[3]"),
        ("3", "local[2,4]", "local[2,4]"),
        ("3", "local", "local[1]"),
        ("3", "spark://host:7077", "spark://host:7077"),
        ("3", "yarn", "yarn"),
    ],
)
def test_a_job_uses_no_more_cores_than_it_takes_slots(
    slots: str | None,
    master: str,
    submitted: str,
    run: Callable[..., Run],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = {"conn_type": "spark", "host": master, "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    monkeypatch.delenv("STATESTORE_SLOTS", raising=False)
    if slots is not None:
        monkeypatch.setenv("STATESTORE_SLOTS", slots)
    argv = run().given["argv"]
    assert argv[argv.index("--master") + 1] == submitted
    assert (f"spark.cores.max={slots}" in argv) is (slots is not None)


def test_a_runs_jvm_compiles_little_unless_somebody_says_otherwise(
    run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "SPARK_SUBMIT_OPTS"
    monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    assert run().given["env"][name] == LITTLE_COMPILED
    archive = tmp_path / "statestore-classes.jsa"
    archive.touch()
    wanted = f"{LITTLE_COMPILED} -XX:SharedArchiveFile={archive}"
    assert run().given["env"][name] == wanted
    monkeypatch.setenv(name, "-Dx=1")
    assert run().given["env"][name] == "-Dx=1"


def test_nothing_stays_behind_of_a_temporary_summary(run: Callable[..., Run]) -> None:
    summary_file = Path(run().arguments[-1])
    assert not summary_file.parent.exists()


def test_a_named_summary_file_is_kept_and_never_an_old_one_read(
    run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "kept.json"
    monkeypatch.setenv("STATESTORE_SUMMARY_FILE", str(kept))
    assert run().raised is None
    assert json.loads(kept.read_text(encoding="utf-8")) == DONE
    assert type(run(NO_SUMMARY).raised) is JobFailed


def test_the_jobs_output_is_in_the_tasks_log_with_one_line_of_figures(
    run: Callable[..., Run], capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    log = capsys.readouterr().out
    assert "a line of the job" in log
    assert "flights: 336776 records in, 5000 out, 40 commits by 8 stream tasks" in log
    assert "flights: dropped: 4 of 16 records, 25 %: late, node hourly" in log
    assert "caught up, 12 records held back until later input (fewer-buffer 10, near 2)" in log


@pytest.mark.parametrize("of_spark_connect", [False, True])
def test_stopping_the_task_ends_every_process_of_the_job(
    target: Application, connected: dict[str, Any], *, of_spark_connect: bool
) -> None:
    job = folder_of(target) / connected["job"]
    job.write_text(STUBBORN.format(python=sys.executable), encoding="utf-8")
    task = operator(target, STUBBORN, **(connected if of_spark_connect else {}))
    raised: list[Exception] = []

    def execute() -> None:
        context = {"ti": TaskInstance(), "outlet_events": OutletEventAccessors()}
        try:
            task.execute(cast("Context", context))
        except AirflowException as error:
            raised.append(error)

    thread = threading.Thread(target=execute)
    thread.start()
    pid_file = folder_of(target) / "child.pid"
    wait_until(pid_file.exists)
    worker = psutil.Process(int(pid_file.read_text(encoding="utf-8")))
    task.on_kill()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
    assert [type(error) for error in raised] == [JobFailed]


def test_stopping_a_task_that_has_not_begun_does_nothing(target: Application) -> None:
    operator(target).on_kill()


def wait_until(condition: Callable[[], bool]) -> None:
    Retrying(
        retry=retry_if_not_result(bool), stop=stop_after_delay(DEADLINE_S), wait=wait_fixed(0.05)
    )(condition)


@pytest.mark.parametrize(
    "given",
    [
        {"settings": {"sasl.password": "hunter2"}},
        {"settings": {"statestore.export.target": "s3://key:hunter2@bucket/folder"}},
    ],
)
def test_a_secret_among_the_settings_of_an_operator_is_refused_and_not_shown(
    given: dict[str, Any],
) -> None:
    common = {"task_id": "t", "application_id": "orders", "pipeline": "a:b", **given}
    with pytest.raises(ValueError, match="put it into a connection") as refused:
        StateStoreCommandOperator(command="status", **common)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ValueError, match="put it into a connection") as refused:
        StateStoreJobOperator(**common)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "flags",
    [
        "--set sasl.password=hunter2",
        "--set=sasl.password=hunter2",
        "--target s3://key:hunter2@bucket/folder",
        "--target=s3://key:hunter2@bucket/folder",
        "--set sasl.password='hunter2",
    ],
)
def test_a_secret_among_the_flags_of_an_operator_is_refused_and_not_shown(flags: str) -> None:
    with pytest.raises(AirflowFailException) as refused:
        split_flags(flags, "orders")
    assert "hunter2" not in str(refused.value)
    assert split_flags("--set 'sasl.password=${P}' --target s3://b/f", "orders") != []


@pytest.fixture
def connected(target: Application, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of a job that is a client of Spark Connect, and stands beside the target."""
    connection = {"conn_type": "spark_connect", "host": "spark", "port": 15002, "password": "hush"}
    monkeypatch.setenv("AIRFLOW_CONN_NEAR", json.dumps(connection))
    job = folder_of(target) / "job.py"
    job.write_text(SUBMIT.format(python=sys.executable), encoding="utf-8")
    return {"job": "job.py", "conn_id": "near"}


def test_a_server_of_spark_connect_needs_no_submission_and_its_token_is_no_argument(
    run: Callable[..., Run], connected: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    done = run(**connected)
    assert done.raised is None
    assert done.pushed["summary"] == done.event["summary"] == DONE
    assert done.given["env"]["SPARK_REMOTE"] == "sc://spark:15002/;token=hush"
    assert done.given["argv"][:2] == ["--application-id", "flights"]
    assert not any("hush" in argument for argument in done.given["argv"])
    said = capsys.readouterr().out
    assert "a line of the job" in said
    assert "hush" not in said


@pytest.mark.parametrize("told", [(NO_SUMMARY, 1), (failed("retry"), 6), (DONE, 1)])
def test_a_client_of_spark_connect_that_fails_is_treated_like_a_submission(
    told: tuple[Any, int], run: Callable[..., Run], connected: dict[str, Any]
) -> None:
    assert type(run(*told, **connected).raised) is JobFailed


@pytest.mark.parametrize("host", [None, "sc://spark/path"])
def test_a_connection_of_spark_connect_names_a_host(
    host: Any, run: Callable[..., Run], connected: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = json.dumps({"conn_type": "spark_connect", "host": host})
    monkeypatch.setenv("AIRFLOW_CONN_NEAR", said)
    assert "it must be a host" in str(run(**connected).raised)


def test_a_client_of_spark_connect_may_say_bytes_that_are_no_text(
    target: Application, run: Callable[..., Run], connected: dict[str, Any]
) -> None:
    job = folder_of(target) / connected["job"]
    job.write_text(f"import os\nos.write(1, b'\\xff\\n')\n{job.read_text()}")
    assert run(**connected).pushed["summary"] == DONE


def test_settings_of_spark_are_those_of_the_server(
    run: Callable[..., Run], connected: dict[str, Any]
) -> None:
    refused = run(**connected, conf={"spark.executor.memory": "4g"})
    assert isinstance(refused.raised, AirflowFailException)
    assert "conf= has spark.executor.memory" in str(refused.raised)
    assert refused.given == {}
