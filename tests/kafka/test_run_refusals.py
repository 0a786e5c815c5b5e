"""Every refusal of a run: the exit code, one line that says the way out, and nothing half done.

Runs are child processes of the installed command on a real broker; those of the two long tables
are calls of that command in this process, as starting it is all they would cost.

Shows I9.
"""

import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from statestore.cli import main
from statestore.layout import owners
from statestore.testing.kafka_jars import SCRATCH_VARIABLE, kafka_libs
from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import DEADLINE_S, ROOT, ManualClock
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import (
    NO_PRIVILEGE,
    STATESTORE,
    App,
    Ended,
    assert_refused,
    counted,
    end_of,
    running,
    updates_in_order,
)
from tests.processes import AnyProcess

pytestmark = pytest.mark.kafka

CHECK, TASKS = ("topology", "check"), ("topology", "tasks")
NOBODY_THERE = "127.0.0.1:1"
SECRET = "hunter2-of-tests"


@pytest.fixture(scope="module")
def shared(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> App:
    """An application that never gets to run: all it tries is refused."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "raises.py").write_text("1 / 0\n")
    (folder / "garbled.py").write_text("def topology(:\n")
    (folder / "imports.py").write_text("import no_such_library\n")
    return App(kafka, "shared", folder / "state").create_topics(other=3)


@pytest.fixture(scope="module", autouse=True)
def alone(
    shared: App, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[App, AnyProcess, float]]:
    """A run that meets no broker; it takes its time, so it begins before all others."""
    folder = tmp_path_factory.mktemp("alone")
    servers = {"bootstrap.servers": NOBODY_THERE}
    app = App(shared.kafka, "alone", folder / "state", settings=servers)
    process = app.start()
    yield app, process, time.monotonic()
    app.end_children()


def run_here(
    app: App, *more: str, pipeline: str | None = None, command: Sequence[str] = ("run",)
) -> Ended:
    """`statestore run`, or another command, without a process of its own."""
    began = time.monotonic()
    out, err = io.TextIOWrapper(io.BytesIO()), io.TextIOWrapper(io.BytesIO())
    on_sigterm = signal.getsignal(signal.SIGTERM)
    with (
        pytest.MonkeyPatch.context() as patch,
        chdir(app.state_dir.parent),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        patch.setattr(sys, "argv", ["statestore", *command, "--json", *app.flags(pipeline), *more])
        patch.setenv(PREFIX_VARIABLE, app.name)
        patch.syspath_prepend(app.state_dir.parent)
        with pytest.raises(SystemExit) as left:
            main()
    signal.signal(signal.SIGTERM, on_sigterm)
    assert isinstance(left.value.code, int)
    out.seek(0)
    err.seek(0)
    return Ended(left.value.code, out.read(), err.read(), time.monotonic() - began)


# Before anything is asked of the broker, or of the topics only.

PIPELINES = "tests.kafka.run_pipelines"
WRONG = {
    "no-colon": ("counts.topology", "PipelineNotFound", "pass module:function"),
    "no-module": (":topology", "PipelineNotFound", "pass module:function"),
    "no-function": (f"{PIPELINES}:", "PipelineNotFound", "pass module:function"),
    "relative": (".pipelines:topology", "PipelineNotFound", ".pipelines"),
    "unknown-module": ("no.such:topology", "PipelineNotFound", "'no.such'", "PYTHONPATH"),
    "unknown-library": ("imports:f", "PipelineNotFound", "no_such_library", "PYTHONPATH"),
    "raising-module": ("raises:f", "PipelineNotFound", "ZeroDivisionError", "raises.py, line 1"),
    "garbled-module": ("garbled:f", "PipelineNotFound", "SyntaxError", "correct the pipeline"),
    "unknown-function": (f"{PIPELINES}:nothing", "PipelineNotFound", "has no function 'nothing'"),
    "no-callable": ("no_function", "PipelineNotFound", "has no function 'no_function'"),
    "arguments": ("wrong_arguments", "PipelineNotFound", "TypeError", "'_needed'"),
    "no-topology": ("no_topology", "PipelineNotFound", "returned str", "return b.build()"),
    "raising": ("raising", "PipelineNotFound", "no such luck", "run_pipelines.py, line"),
    "refused": ("refused_by_the_builder", "InvalidTopology", "begin with stream()"),
    "unnamed": (
        "unnamed",
        "InvalidTopology",
        "store KSTREAM-AGGREGATE",
        "repartition topic KSTREAM",
        "ensure.explicit.internal.resource.naming=false",
    ),
    "topics": ("missing_topics", "TopicMissing", "shared-nobody, shared-nowhere", "create them"),
    "copartitioned": (
        "joined",
        "NotCopartitioned",
        "shared-in: 2, shared-other: 3",
        "repartition()",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_pipeline_that_cannot_run_is_refused_before_anything_is_done(
    shared: App, case: str
) -> None:
    pipeline, error, *says = WRONG[case]
    with shared.unchanged():
        refused = run_here(shared, pipeline=pipeline)
        assert_refused(refused, 2, error, *says)
        checked = run_here(shared, pipeline=pipeline, command=CHECK)
        assert (checked.code, checked.message) == (refused.code, refused.message)
    assert not shared.state_dir.exists()


def test_a_check_tells_what_the_next_start_does_first_and_does_nothing(app: App) -> None:
    with app.unchanged():
        before = run_here(app, command=CHECK)
    created = [f"{app.name}-by-user-repartition", f"{app.name}-counts-changelog"]
    assert (before.code, before.summary["creates"]) == (0, created)
    assert before.summary["stream_tasks"] == 4
    tasks = [json.loads(line) for line in run_here(app, command=TASKS).out.splitlines()]
    assert [one["stream_task"] for one in tasks] == ["0_0", "0_1", "1_0", "1_1"]
    assert tasks[-1]["topics"] == created[:1]
    app.drained()
    for name in ("other", "other-out"):
        app.kafka.create_topic(f"{app.name}-{name}", 2, {"retention.ms": -1})
    with app.unchanged():
        after = run_here(app, pipeline="counts_reordered", command=CHECK).summary
    moves = [(m["store"], m["source"], m["target"]) for m in after["relocation"]["plan"]["moves"]]
    assert [store for store, _, _ in moves] == ["counts", "counts"]
    assert all(source != target for _, source, target in moves)


FLAGS: dict[str, tuple[list[str], str, *tuple[str, ...]]] = {
    "unknown setting": (
        ["--set=commit.intervals.ms=3"],
        "InvalidSetting",
        "did you mean 'commit.interval.ms'",
    ),
    "impossible setting": (["--set=commit.interval.ms=-3"], "InvalidSetting", "smallest allowed"),
    "guarantee": (["--processing-guarantee=twice"], "InvalidSetting", "processing.guarantee"),
    "client setting": (["--set=consumer.fetch.foo=1"], "InvalidSetting", "fetch.foo", "consumer.*"),
    "fixed setting": (
        ["--set=consumer.isolation.level=read_uncommitted"],
        "InvalidSetting",
        "remove the setting",
    ),
    "secret": (
        [f"--set=sasl.password={SECRET}"],
        "Misuse",
        "sasl.password=…",
        "applications file",
        "${VARIABLE}",
    ),
    "no time": (["--until=tomorrow"], "Misuse", "'tomorrow'", "ISO-8601 with a zone"),
    "no zone": (["--until=2024-01-01T00:00:00"], "Misuse", "no time zone"),
    "no span": (["--run-for=2x"], "Misuse", "'2x'", "5m"),
    "until and span": (["--until=1700000000000", "--run-for=2s"], "Misuse", "exclude each other"),
    "config": (["--config=nowhere.toml"], "InvalidSetting", "nowhere.toml"),
}


@pytest.mark.parametrize("case", FLAGS)
def test_flags_that_cannot_hold_are_refused_before_anything_is_done(shared: App, case: str) -> None:
    flags, error, *says = FLAGS[case]
    with shared.unchanged():
        ended = run_here(shared, *flags)
        assert_refused(ended, 2, error, *says)
    assert not shared.state_dir.exists()
    assert SECRET not in ended.out + ended.err


@pytest.mark.parametrize(
    "command",
    [
        ("run",),
        pytest.param(CHECK, marks=pytest.mark.thorough),
        pytest.param(("relocate",), marks=pytest.mark.thorough),
    ],
)
def test_a_transaction_timeout_above_the_brokers_limit_is_refused_by_its_name(
    app: App, command: Sequence[str]
) -> None:
    app.drained()
    with app.unchanged():
        long = "--set=transaction.timeout.ms=2000000000"
        ended = app.run(long, pipeline="counts_by_key", command=command)
        assert ended.code == 2, ended.err[-2000:]
        says = ("InvalidSetting", "transaction.timeout.ms", "transaction.max.timeout.ms")
        assert [text for text in says if text not in ended.message] == [], ended.message
        assert "Traceback" not in ended.err


def test_a_summary_file_that_cannot_be_written_is_refused_before_the_run(shared: App) -> None:
    with shared.unchanged():
        ended = shared.run("--summary-file=no/such/folder.json")
        assert_refused(ended, 8, "HostFailure", "no/such/folder.json", "--summary-file")


def test_unnamed_stores_and_repartitions_run_when_the_setting_allows_them(app: App) -> None:
    allowed = "--set=ensure.explicit.internal.resource.naming=false"
    assert app.drained(allowed, pipeline="unnamed")["records_in"] == 2 * 20


# This machine.


def test_a_file_in_place_of_the_state_dir_is_refused(shared: App, tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    state_dir.write_text("in the way")
    with shared.unchanged():
        ended = shared.run(f"--state-dir={state_dir}")
        assert_refused(ended, 8, "HostFailure", str(state_dir), "pass another --state-dir")
    assert state_dir.read_text() == "in the way"


@pytest.mark.parametrize("mode", [0o500, 0o000], ids=oct)
def test_a_state_dir_that_cannot_be_written_is_refused(
    shared: App, tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / "state" / shared.name
    folder.mkdir(parents=True)
    folder.chmod(mode)
    through = NO_PRIVILEGE if os.geteuid() == 0 else ()
    try:
        with shared.unchanged():
            ended = shared.run(f"--state-dir={folder.parent}", through=through)
            assert_refused(ended, 8, "HostFailure", str(folder), "writable")
    finally:
        folder.chmod(0o700)
    assert list(folder.parent.rglob("*")) == [folder]


def test_a_broker_cannot_start_without_java_or_maven(tmp_path: Path) -> None:
    bare, with_jars = tmp_path / "bare", tmp_path / "jars"
    bare.mkdir()
    with_jars.mkdir()
    (with_jars / kafka_libs().parent.name).symlink_to(kafka_libs().parent)
    for scratch, program in ((bare, "'mvn'"), (with_jars, "'java'")):
        environment = {**os.environ, "PATH": str(tmp_path), SCRATCH_VARIABLE: str(scratch)}
        environment.pop("JAVA_HOME", None)
        command = [str(STATESTORE), "kafka", "start"]
        done = processes.run(command, env=environment, timeout=DEADLINE_S)
        assert done.returncode == 8, done.stderr
        line = done.stderr.splitlines()[-1]
        assert line.startswith(f"statestore: HostFailure: {program} was not found")
        assert line.endswith("apt-get install openjdk-17-jre-headless maven")
        assert "Traceback" not in done.stderr
        assert not list(scratch.rglob("broker.json"))
        assert not list(scratch.rglob("meta.properties"))


# Other owners.


def test_an_application_that_runs_elsewhere_is_locked_until_its_owner_is_gone(app: App) -> None:
    first = app.start("--run-for=100s")
    running(app, first, lambda: sum(app.committed().values()) >= 20)
    try:
        with app.unchanged_topics():
            ended = app.run()
        owner = (f"process {first.pid} on {socket.gethostname()}", "waited 300 ms")
        assert_refused(ended, 6, "Locked", f"application {app.name}", *owner)
        assert first.poll() is None, "the refused run did not touch the first"
    finally:
        first.kill()
        first.communicate()
    app.produce(range(20, 30))
    app.drained()
    assert updates_in_order(app.read()) == counted(range(30)) == app.stored()


def test_a_task_folder_held_by_another_process_is_locked_until_it_lets_go(app: App) -> None:
    folder = app.state_dir / app.name / "0_1"
    folder.mkdir(parents=True)
    held = owners.claim(folder, what="held by a test", wait_ms=0, clock=ManualClock())
    owner = f"process {os.getpid()} on {socket.gethostname()}"
    assert_refused(app.run(), 6, "Locked", "task 0_1", owner, "then start again")
    held.release()
    app.drained()
    assert updates_in_order(app.read()) == counted(range(20)) == app.stored()


# State and topics of another topology.


def test_an_internal_topic_with_another_partition_count_is_refused(app: App) -> None:
    for wrong in ("by-user-repartition", "counts-changelog"):
        name = f"{app.name}-{wrong}"
        app.kafka.create_topic(name, partitions=3)
        with app.unchanged():
            says = (f"{name} has 3 partitions, the topology needs 2", "bring the old count back")
            assert_refused(app.run(), 2, "NotCopartitioned", *says)
        assert not app.state_dir.exists()
        app.delete_topic(name)
    app.drained()


def test_state_of_other_stores_or_in_other_places_is_refused(app: App) -> None:
    app.drained()
    with app.unchanged():
        ended = app.run(pipeline="other_stores")
        assert_refused(ended, 3, "TopologyMismatch", "holds counts", "--accept-new-topology")
    with app.unchanged():
        ended = app.run("--set=automatic.state.relocation=false", pipeline="counts_by_key")
        places = [f"counts: in 1_{p}, should be in 0_{p}" for p in range(2)]
        way_out = f"`statestore relocate --application-id {app.name}`"
        assert_refused(ended, 3, "TopologyMismatch", *places, way_out)
    assert app.drained("--accept-new-topology", pipeline="other_stores")["caught_up"]
    assert app.stored() == counted(range(20)), "the old stores stay"


def test_an_emptied_changelog_is_refused_until_its_loss_is_accepted(app: App) -> None:
    app.drained(pipeline="counts_by_key")
    changelog = f"{app.name}-counts-changelog"
    app.delete_topic(changelog)
    for _ in range(2):
        ended = app.run(pipeline="counts_by_key")
        assert_refused(ended, 2, "Misuse", f"{changelog}-0 is empty", "--accept-empty-changelog")
        assert app.stored(ordinal=0) == {f"k{n}": 1 for n in range(20)}, "the store stays"
    app.drained("--accept-empty-changelog", pipeline="counts_by_key")
    assert app.stored(ordinal=0) == {}
    assert len(list((app.state_dir / app.name / "quarantine").iterdir())) == 2


# The Spark job, and a broker that is not there.


@pytest.mark.thorough
@pytest.mark.spark
def test_a_refused_job_says_the_same_by_exit_code_summary_file_and_json_line(
    shared: App, tmp_path: Path
) -> None:
    summary = tmp_path / "summary.json"
    submit = shutil.which("spark-submit", path=str(Path(sys.executable).parent))
    assert submit is not None
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RUN_TOPICS": shared.name}

    def ended_of(*command: str) -> Ended:
        done = subprocess.run(
            [*command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr, 0.0)

    with shared.unchanged():
        flags = (*shared.flags("missing_topics"), f"--summary-file={summary}")
        ended = ended_of(submit, "--master", "local[2,4]", "jobs/process.py", *flags)
    assert ended.code == 2, ended.err[-4000:]
    error = ended.summary["error"]
    assert json.loads(summary.read_text()) == ended.summary
    assert (error["class"], error["exit_code"], error["action"]) == ("TopicMissing", 2, "fail")
    assert f"statestore: TopicMissing: {error['message']}" in ended.out + ended.err
    assert ended_of(sys.executable, "jobs/process.py", "--no-such-flag").code == 2


def test_a_broker_that_is_not_there_is_named_soon_and_nothing_is_done(
    alone: tuple[App, AnyProcess, float],
) -> None:
    app, process, began = alone
    ended = end_of(process, began)
    assert_refused(ended, 7, "Unavailable", NOBODY_THERE, "refused", "are the brokers up")
    assert ended.summary["error"]["action"] == "retry"
    assert not app.state_dir.exists()
