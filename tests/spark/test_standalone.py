"""A run on a standalone Spark master with two workers: two processes, exact results."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from statestore.layout.activity_files import NoProgress
from statestore.operations.exports.catalog import Exports
from statestore.runtime import Runtime
from statestore.runtime.databases import RocksDatabases
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.builders import ROOT
from tests.crash.kill_harness import Rig
from tests.crash.pipeline import PREFIX_VARIABLE
from tests.kafka.run_rig import name_of
from tests.spark.cluster_rig import CHECKOUT, RUN_S, Cluster, standalone, submit

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """What the topics of a test begin with."""
    return name_of(request.node.name)


@pytest.fixture
def cluster(tmp_path: Path, prefix: str) -> Iterator[Cluster]:
    """A master with two workers, whose executors know the checkout and the topics."""
    with standalone(tmp_path, variables={**CHECKOUT, PREFIX_VARIABLE: prefix}) as cluster:
        yield cluster


def submitted(cluster: Cluster, cwd: Path, job: str, *arguments: str, **variables: str) -> None:
    """A job that must end well; `variables`: what only its driver has."""
    log = cluster.folder / "submit.log"
    known = {**cluster.variables, **variables}
    with log.open("ab") as file:
        process = submit(
            cluster.address, ROOT / job, *arguments, cwd=cwd, log=file, variables=known
        )
    assert process.wait(RUN_S) == 0, log.read_text(errors="replace")[-4000:]


def test_a_run_on_a_standalone_master_with_two_workers_is_exact_and_so_is_its_export(
    kafka: LocalKafka, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    rig = Rig(kafka, tmp_path / "state", application_id="standalone", topic_prefix=prefix)
    rig.create_topics()
    for _ in range(2):
        rig.produce(4000)
        submitted(cluster, ROOT, "jobs/process.py", *rig.command())
    assert rig.findings() == []
    assert cluster.took_part() == {0, 1}
    # Workers have work folders of their own: a target named relative to the driver's is one place.
    where = [flag for flag in rig.command() if flag.startswith(("--app", "--boot", "--state"))]
    submitted(cluster, tmp_path, "jobs/export.py", "--target=exports", *where)
    settings = Settings(application_id="standalone", export_target=str(tmp_path / "exports"))
    exports = Exports.of(Runtime(settings))
    found = exports.verify(exports.read(), NoProgress(), RocksDatabases().offsets_of)
    assert found.stores == 2
    workers = [path for number in range(2) for path in (tmp_path / f"w{number}").rglob("exports")]
    assert workers == []


def test_what_a_schedulers_connection_says_reaches_workers_that_do_not_have_it(
    kafka: LocalKafka, cluster: Cluster, prefix: str, tmp_path: Path
) -> None:
    rig = Rig(kafka, tmp_path / "state", application_id="connected", topic_prefix=prefix)
    rig.create_topics()
    rig.produce(100)
    secret = "told-by-a-connection"
    names = {
        "producer.client.id": "STATESTORE_CONNECTION_CLIENT_ID",
        "commit.interval.ms": "STATESTORE_CONNECTION_COMMIT_INTERVAL_MS",
    }
    pairs = [f"--set={key}=${{{name}}}" for key, name in names.items()]
    values = dict(zip(names.values(), (secret, "700"), strict=True))
    submitted(cluster, ROOT, "jobs/process.py", *rig.command(), *pairs, **values)
    assert rig.findings() == []
    kept = [path for path in cluster.folder.rglob("*") if path.suffix in {".log", ""}]
    logs = {path: path.read_bytes() for path in kept if path.is_file()}
    assert [path for path, log in logs.items() if b"stream tasks" in log], "the job's log is there"
    shown = [path for path, log in logs.items() if secret.encode() in log]
    assert [path for path in shown if not path.is_relative_to(rig.state_dir)] == []
