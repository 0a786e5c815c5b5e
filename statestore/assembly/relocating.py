"""A relocation put together: settings in, what was moved out."""

from collections.abc import Mapping

from statestore.assembly.opening import format_of, is_empty
from statestore.assembly.surroundings import SystemClock, checked_cluster, layout_of
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.topics import KafkaCluster
from statestore.operations.at_rest import existing_application
from statestore.operations.changelogs import holds_records
from statestore.operations.clones.record import as_deployed
from statestore.operations.relocation.apply import Relocation, RelocationReport
from statestore.operations.relocation.plan import Choices
from statestore.settings import Settings
from statestore.topology.graph import TopicName, Topology
from statestore.topology.logs import log_of, logs


def relocate(
    topology: Topology,
    settings: Settings,
    choices: Choices,
    *,
    dry_run: bool,
    offline: bool,
    accept_new_serdes: bool = False,
) -> RelocationReport:
    """Move the state of a stopped application to where `topology` looks for it (SEMANTICS R1-R5).

    `dry_run`: nothing is touched, and no broker asked. `offline`: no broker is asked, so every
    stream task must have been closed cleanly.
    """
    settings.require("application.id", "state.dir")
    layout = existing_application(layout_of(settings))
    topology, settings = as_deployed(topology, settings, layout)
    cluster = None if dry_run or offline else checked_cluster(settings)
    reused = logs(topology, settings).topics()

    def has_records(store: str) -> bool:
        topic = log_of(layout.application_id, store, reused)
        return cluster is None or holds_records(cluster, KafkaChangelog(settings), topic)

    try:
        relocation = Relocation(
            topology,
            layout,
            SystemClock(),
            settings.processing_guarantee,
            None if cluster is None else cluster.abort_open_transactions,
            lock_wait_ms=settings.lock_wait_ms,
            locks=settings.volume_locks,
            counts=None if cluster is None else _partition_counts(topology, cluster),
            choices=choices,
            logs=reused,
            is_empty=is_empty,
            format_of=format_of,
            has_records=has_records,
            accept_new_serdes=accept_new_serdes,
        )
        return relocation.report() if dry_run else relocation.apply_locked()
    finally:
        if cluster is not None:
            cluster.close()


def _partition_counts(topology: Topology, cluster: KafkaCluster) -> Mapping[TopicName, int]:
    read, _ = topology.topics()
    return topology.partition_counts(cluster.partitions(sorted(read)))
