"""Java's archive of the classes that a broker loads, beside the jars.

With it a broker starts for half of the processor time. Making it costs as much as two starts, so
nobody who starts a broker makes it: that pays where many are started, as in the repository's tests.
Java does not use an archive of other jars or of another Java, and goes on without one.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import filelock
import psutil

from statestore.errors import Unavailable
from statestore.kafka.testing import TopicPlan, admin, create_topics
from statestore.testing.kafka_jars import kafka_libs, scratch_dir
from statestore.testing.kafka_node import (
    KafkaNode,
    Lifetime,
    archive_of,
    await_ready,
    end,
    launch,
    new_cluster_id,
    prepare,
    reserved_ports,
)

_READY_MS = 60_000
_TOPIC_MS = 30_000
_DUMP_S = 120.0


def make_class_archive() -> Path:
    """The archive of the jars, which is made by a broker that starts and ends if there is none."""
    archive = archive_of(kafka_libs())
    scratch = scratch_dir()
    with filelock.FileLock(scratch / "class-archive.lock"):
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=scratch, prefix="class-archive-") as folder:
                _make(Path(folder), archive)
    return archive


def _make(folder: Path, archive: Path) -> None:
    made = folder / archive.name
    with reserved_ports(2, scratch_dir() / "ports") as (port, controller_port):
        node = KafkaNode(0, port, controller_port, folder / "node", folder / "data")
        prepare(node, [node], {}, new_cluster_id())
        process = launch(node, Lifetime.PARENT, options=(f"-XX:ArchiveClassesAtExit={made}",))
        broker: Sequence[psutil.Process] = [psutil.Process(process.pid)]
        try:
            await_ready(node, process, timeout_ms=_READY_MS)
            create_topics(admin(node.address), [TopicPlan("any", 1)], timeout_ms=_TOPIC_MS)
            end(broker, grace_s=_DUMP_S)
        finally:
            end(broker, grace_s=0)
            process.wait()
    if not made.exists():
        raise Unavailable(
            f"Java made no archive of classes; the end of {node.log}:\n{node.log_tail()}"
        )
    made.rename(archive)
