"""Runs and readers of stores from an installed wheel, in folders that know no checkout.

A script, a console into which cells are typed, Spark Connect, and a cluster with a packed
environment as docs/guides/spark.md makes it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, ROOT, eventually
from tests.crash.kill_harness import Rig
from tests.docs.shell_page import steps
from tests.spark.cluster_rig import HOST, RUN_S, SPARK_HOME, Daemon, environment, standalone
from tests.spark.gated_pipeline import GATE_VARIABLE, TOPICS_VARIABLE
from tests.spark.test_second_attempts import RECORDS, Job, assert_exact
from tests.wheel_rig import built_wheel, installed

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]
TOTALS = {f"k{k}": 3 * sum(range(k, 100, 5)) for k in range(5)}
# As a notebook has it: functions, a class and a global of its own, and no module.
NOTEBOOK = """
import json, os
import statestore as ss
from statestore import serdes
from statestore.spark import TransactionalStore
from pyspark.sql import SparkSession

FACTOR = 3

def larger(value):
    return value * FACTOR

class Keep:
    def __init__(self, context):
        self.context, self.seen = context, context.store("seen")
    def process(self, record):
        self.seen.put(record.key, record.value)
        self.context.forward(record)

def pipeline():
    name = os.environ["NAME"]
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    seen = ss.persistent_key_value_store("seen", key_serde=serdes.STRING, value_serde=serdes.INT64)
    records = b.stream(f"{name}-in").map_values(larger, name="larger")
    kept = records.process(Keep, seen, name="keep")
    kept.group_by_key().reduce(lambda so_far, value: so_far + value, "total")
    return b.build()

def session():
    if "REMOTE" not in os.environ:
        return SparkSession.builder.master("local[2]").getOrCreate()
    spark = SparkSession.builder.remote(os.environ["REMOTE"]).getOrCreate()
    if "ARCHIVE" in os.environ:
        spark.addArtifacts(os.environ["ARCHIVE"] + "#environment", archive=True)
        spark.conf.set("spark.sql.execution.pyspark.python", "environment/bin/python")
    return spark

def rows_of(spark, state_dir, application_id):
    if "ARCHIVE" in os.environ:
        with ss.open_snapshot(state_dir, application_id, "total") as store:
            return dict(store.all())
    spark.dataSource.register(TransactionalStore)
    reader = spark.read.format("transactional_store").option("state_dir", state_dir)
    frame = reader.option("application_id", application_id).option("store", "total").load()
    return {row["key"]: row["value"] for row in frame.collect()}

spark = session()
settings = json.loads(os.environ["SETTINGS"])
summary = ss.run(pipeline(), settings, spark=spark)
again = ss.run(pipeline(), settings, spark=spark, run_for=2000)
rows = rows_of(spark, settings["state.dir"], settings["application.id"])
print("RESULT", json.dumps([ss.__file__, summary.records_in, again.records_in, rows]))
spark.stop()
"""

# The records of a notebook, again: with a stop in the middle, as by the button of a notebook.
INTERRUPTED = NOTEBOOK.replace(
    "summary = ss.run(pipeline(), settings, spark=spark)",
    """
from pathlib import Path
import time

gate = Path(os.environ["GATE"])

def larger(value):
    if value == 50 and not gate.exists():
        gate.with_suffix(".reached").write_text(str(os.getpid()))
        while True:
            time.sleep(1)
    return value * FACTOR

try:
    ss.run(pipeline(), settings, spark=spark)
    raise SystemExit("it was not interrupted")
except KeyboardInterrupt:
    until = time.monotonic() + 120
    worker = Path("/proc", gate.with_suffix(".reached").read_text())
    while worker.exists():
        assert time.monotonic() < until, "the worker goes on"
        time.sleep(0.1)
    gate.touch()
summary = ss.run(pipeline(), settings, spark=spark)
""",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def driver(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the extra `spark`."""
    home = tmp_path_factory.mktemp("driver")
    return installed(wheel, home, extras=("spark", "testing"))


@pytest.fixture(scope="module")
def archive(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packed environment of the executors, with all that the gated pipeline imports."""
    folder = tmp_path_factory.mktemp("archive")
    installed(wheel, folder / "environment", extras=("testing",))
    (packages,) = folder.glob("environment/lib/python3.*/site-packages")
    for link in [path for path in packages.iterdir() if path.is_symlink()]:
        real = link.resolve()
        link.unlink()
        copy = shutil.copytree if real.is_dir() else shutil.copy
        copy(real, link)
    (pack, *_) = standalone_steps()
    subprocess.run(["bash", "-euc", pack], cwd=folder, check=True, timeout=RUN_S)
    return folder / "environment.tar.gz"


def standalone_steps() -> list[str]:
    """The commands of the guide for a standalone cluster."""
    page = (ROOT / "docs" / "guides" / "spark.md").read_text(encoding="utf-8")
    commands = [step.command for step in steps(page)]
    assert [command.split()[0] for command in commands] == ["tar", "export", "spark-submit"]
    return commands


@pytest.fixture
def notebook(kafka: LocalKafka, driver: Path, tmp_path: Path) -> dict[str, str]:
    """The variables of a reader's shell, for a notebook about topics that have records."""
    name = tmp_path.name
    kafka.create_topic(f"{name}-in", partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in range(100):
        producer.produce(f"{name}-in", key=f"k{number % 5}", value=number.to_bytes(8, "big"))
    assert producer.flush(DEADLINE_S) == 0
    settings = {
        "application.id": name,
        "bootstrap.servers": kafka.bootstrap_servers,
        "state.dir": str(tmp_path / "state"),
        "processing.guarantee": "exactly_once",
    }
    path = f"{driver}:{SPARK_HOME / 'bin'}:{os.environ['PATH']}"
    return {"PATH": path, "NAME": name, "SETTINGS": json.dumps(settings)}


def result_of(
    driver: Path, folder: Path, variables: dict[str, str], *flags: str, cells: str | None = None
) -> None:
    """Run Python with these flags, and compare what it says with what went in."""
    home = folder / "elsewhere"
    home.mkdir()
    (home / "notebook.py").write_text(NOTEBOOK, encoding="utf-8")
    done = subprocess.run(
        [str(driver / "python"), *flags],
        cwd=home,
        env=environment(variables),
        input=cells,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if "RESULT" in line]
    assert lines, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    found: list[Any] = json.loads(lines[0].partition("RESULT ")[2])
    assert Path(found[0]).is_relative_to(driver.parent), "the wheel's"
    # A processor may change keys, so the records went through a repartition topic.
    assert found[1:] == [2 * 100, 0, TOTALS]


def test_a_script_with_its_own_functions_runs_as_main(
    driver: Path, notebook: dict[str, str], tmp_path: Path
) -> None:
    result_of(driver, tmp_path, notebook, "notebook.py")


def test_cells_typed_into_a_console_run(
    driver: Path, notebook: dict[str, str], tmp_path: Path
) -> None:
    result_of(driver, tmp_path, notebook, "-i", "-q", cells=NOTEBOOK)


def test_workers_that_lack_the_packages_are_told_apart_from_a_wrong_pipeline(
    driver: Path, notebook: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "notebook.py").write_text(NOTEBOOK, encoding="utf-8")
    bare = sys._base_executable  # type: ignore[attr-defined]  # it has no packages
    done = subprocess.run(
        [str(driver / "python"), "notebook.py"],
        cwd=tmp_path,
        env=environment({**notebook, "PYSPARK_PYTHON": bare}),
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    told = done.stderr.strip().splitlines()[-1]
    assert re.match(r"statestore.errors.Misuse: Spark's workers have no module '\w+': give", told)


def test_an_interrupted_cell_ends_its_run_on_the_workers_and_the_next_one_continues(
    driver: Path, notebook: dict[str, str], tmp_path: Path
) -> None:
    gate, script = tmp_path / "gate", tmp_path / "interrupted.py"
    script.write_text(INTERRUPTED, encoding="utf-8")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(driver / "python"), str(script)],
            env=environment({**notebook, "GATE": str(gate)}),
            stdout=log,
            stderr=log,
        )
    try:
        reached = gate.with_suffix(".reached")
        eventually(lambda: reached.exists() and bool(reached.read_text()), "at the gate", RUN_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(RUN_S) == 0, (tmp_path / "log").read_text()[-4000:]
    finally:
        process.kill()
        process.wait(RUN_S)
    (told,) = [line for line in (tmp_path / "log").read_text().splitlines() if "RESULT" in line]
    assert json.loads(told.partition("RESULT ")[2])[3] == TOTALS


@pytest.mark.parametrize("sent", [True, False], ids=["environment sent", "environment there"])
def test_spark_connect_runs_it(
    wheel: Path, archive: Path, notebook: dict[str, str], tmp_path: Path, sent: bool
) -> None:
    # The client of Connect needs more than the extra `spark`.
    client = installed(wheel, tmp_path / "client", extras=None)
    servers = "/usr/bin/false" if sent else str(archive.parent / "environment/bin/python")
    server = Daemon(
        tmp_path,
        "connect",
        {"SPARK_LOCAL_IP": HOST, "PYSPARK_PYTHON": servers},
        *("org.apache.spark.deploy.SparkSubmit", "--master", "local[2]"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *("--conf", "spark.connect.grpc.binding.port=0"),
        *("--conf", f"spark.connect.grpc.binding.address={HOST}"),
        *("--conf", "spark.ui.enabled=false"),
    )
    try:
        port = server.await_line(r"Spark Connect server started at: \S+:(\d+)")
        remote = {"REMOTE": f"sc://{HOST}:{port}"} | ({"ARCHIVE": str(archive)} if sent else {})
        result_of(client, tmp_path, notebook | remote, "notebook.py")
    finally:
        server.end()


def test_a_cluster_with_a_packed_environment_is_exact_though_a_worker_is_killed(
    kafka: LocalKafka, driver: Path, archive: Path, tmp_path: Path
) -> None:
    rig = Rig(kafka, tmp_path / "state", application_id="shop", topic_prefix="packed")
    rig.create_topics()
    rig.produce(RECORDS)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "environment.tar.gz").symlink_to(archive)
    shutil.copy(ROOT / "tests" / "spark" / "gated_pipeline.py", folder / "shop.py")
    gate, log, summary = tmp_path / "gate", tmp_path / "submit.log", tmp_path / "summary.json"
    ours = {TOPICS_VARIABLE: "packed", GATE_VARIABLE: str(gate)}
    # A job finds its flags in variables, too. One core each, as the workers have.
    flags = {"BROKERS": kafka.bootstrap_servers, "STATE": str(rig.state_dir)}
    flags |= {"STATESTORE_SUMMARY_FILE": str(summary), "SPARK_CONF_DIR": str(folder)}
    defaults = ("spark.ui.enabled false", "spark.executor.cores 1", "spark.executor.memory 512m")
    (folder / "spark-defaults.conf").write_text("\n".join(defaults), encoding="utf-8")
    path = f"{driver}:{SPARK_HOME / 'bin'}:{os.environ['PATH']}"
    _, *commands = standalone_steps()
    with standalone(tmp_path, variables=ours) as cluster, log.open("wb") as file:
        process = subprocess.Popen(
            ["bash", "-euc", "\n".join([*commands[:-1], f"exec {commands[-1]}"])],
            cwd=folder,
            env=environment({**ours, **flags, "PATH": path, "MASTER": cluster.address}),
            stdout=file,
            stderr=file,
        )
        try:
            job = Job(rig, cluster, process, log, gate, summary)
            first = job.await_gate()
            cluster.workers[first].kill()
            job.open_gate()
            assert_exact(job)
            assert cluster.took_part() == {0, 1}
            for number in (0, 1):
                assert any(cluster.work_dir(number).glob("app-*/*/environment/bin/python"))
        finally:
            process.kill()
            process.wait(RUN_S)
