"""What every product is put together from: clocks, the state folder, exports, the cluster."""

import time
from pathlib import Path

from statestore.errors import Misuse
from statestore.kafka.topics import KafkaCluster
from statestore.layout.folders import StateLayout
from statestore.operations.exports.catalog import Exports
from statestore.settings import Settings, expand
from statestore.targets import Address, FsspecTarget, fixed


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


def layout_of(settings: Settings) -> StateLayout:
    """The folder of an application; Misuse if no folder can have the name of its state dir."""
    folder = Path(expand(settings.state_dir, "state.dir"))
    try:
        folder.exists()
    except PermissionError:
        pass  # whoever writes there says so
    except (OSError, ValueError) as error:
        raise Misuse(f"state.dir {str(folder)[:80]!r}: {error}: name another folder") from error
    return StateLayout(folder, settings.application_id)


def exports_of(settings: Settings) -> Exports:
    """The exports of an application at its `statestore.export.target`."""
    settings.require("application.id", "statestore.export.target")
    target = FsspecTarget(expand(settings.export_target, "statestore.export.target"))
    if not target.lasting:
        raise Misuse(
            f"{target.url} ends with this process, and every export there with it: name a folder "
            "or an object store"
        )
    return Exports(target, settings.application_id, SystemClock())


def fixed_target(settings: Settings) -> str | None:
    """`statestore.export.target` as it means the same anywhere: absolute, its variables replaced.

    None if there is none, or it has a secret: that stays as it was given, for what names variables
    may travel, and never what they hold.
    """
    target = expand(settings.export_target, "statestore.export.target")
    return fixed(target) if target and not Address.of(target).secrets else None


def checked_cluster(settings: Settings) -> KafkaCluster:
    """The brokers, asked once: Unavailable or Misuse at once if they are not fit."""
    settings.require("bootstrap.servers")
    cluster = KafkaCluster(settings)
    cluster.check()
    return cluster
