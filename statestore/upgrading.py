"""The upgrade of a plain store to a versioned one, put together: settings in, what was done out."""

from pathlib import Path

from statestore.assembly import SystemClock
from statestore.kafka.topics import KafkaCluster
from statestore.layout.folders import StateLayout
from statestore.opening import kind_of
from statestore.operations.at_rest import existing_application
from statestore.operations.upgrade import Upgrade, UpgradeReport
from statestore.settings import Settings, expand


def upgrade_to_versioned(
    settings: Settings, store: str, retention_ms: int, *, dry_run: bool
) -> UpgradeReport:
    """Make way for a versioned store where a plain one was (SEMANTICS V11).

    `dry_run`: nothing is touched, and no broker asked. Locked while the application runs.
    """
    settings.require("application.id", "state.dir")
    state_dir = Path(expand(settings.state_dir, "state.dir"))
    layout = existing_application(StateLayout(state_dir, settings.application_id))
    upgrade = Upgrade(layout, store, retention_ms, kind_of=kind_of, clock=SystemClock())
    if dry_run:
        return upgrade.plan()
    settings.require("bootstrap.servers")
    cluster = KafkaCluster(settings)
    try:
        cluster.check()
        return upgrade.apply(cluster.raise_compaction_lag)
    finally:
        cluster.close()
