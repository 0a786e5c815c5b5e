"""The upgrade of a plain store to a versioned one, put together: settings in, what was done out."""

from statestore.assembly.opening import kind_of
from statestore.assembly.surroundings import SystemClock, checked_cluster, layout_of
from statestore.operations.at_rest import existing_application
from statestore.operations.upgrade import Upgrade, UpgradeReport
from statestore.settings import Settings


def upgrade_to_versioned(
    settings: Settings, store: str, retention_ms: int, *, dry_run: bool
) -> UpgradeReport:
    """Make way for a versioned store where a plain one was (SEMANTICS V11).

    `dry_run`: nothing is touched, and no broker asked. Locked while the application runs.
    """
    settings.require("application.id", "state.dir")
    layout = existing_application(layout_of(settings))
    upgrade = Upgrade(
        layout,
        store,
        retention_ms,
        kind_of=kind_of,
        clock=SystemClock(),
        locks=settings.volume_locks,
    )
    if dry_run:
        return upgrade.plan()
    cluster = checked_cluster(settings)
    try:
        return upgrade.apply(cluster.raise_compaction_lag)
    finally:
        cluster.close()
