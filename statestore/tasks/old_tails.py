"""Whether a store may still go on from where it stands, or its changelog has forgotten too much.

A changelog forgets a delete `delete.retention.ms` after a cleaner first met it. A store that stands
before such a delete, and has the row, would keep the row for good: a crash tail that waited too
long, or a volume put back from an old copy. A store says as of when it had all that its log held,
so every delete it lacks was logged after that (I29).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from statestore.errors import Misuse
from statestore.ports import Clock
from statestore.tasks.owned import OwnedStore

_log = logging.getLogger(__name__)
SettingsOf = Callable[[Sequence[str]], Mapping[str, Mapping[str, str]]]


@dataclass(frozen=True)
class TailGuard:
    """Tells which tails are too old; `settings_of` asks the cluster for topics' settings."""

    settings_of: SettingsOf
    clock: Clock
    exactly_once: bool

    def why_too_old(self, opened: OwnedStore, start: int, until: int) -> str | None:
        """Why the log from `start` to `until` may lack deletes; None: it has them all."""
        if start + self._own_markers(opened) >= until:
            return None
        complete_ms = opened.complete_ms()
        if complete_ms is None:
            return None
        retention_ms = self._delete_retention_ms(opened.changelog.topic)
        age_ms = self.clock.now_ms() - complete_ms
        if retention_ms is None or age_ms < retention_ms:
            return None
        return (
            f"stands at {start} of {opened.changelog}, as it was {age_ms // 1000} s ago; the log "
            f"keeps deletes for {retention_ms // 1000} s (delete.retention.ms), so deleted keys "
            "could come back"
        )

    def _own_markers(self, opened: OwnedStore) -> int:
        """What follows a store that lacks nothing: the mark that ended its last transaction."""
        return 1 if self.exactly_once and opened.source is None else 0

    def _delete_retention_ms(self, topic: str) -> int | None:
        """None: the topic forgets no delete before its record, or does not say."""
        try:
            told = self.settings_of([topic]).get(topic, {})
        except Misuse as error:
            _log.warning("how long %s keeps deletes is not known: %s", topic, error)
            return None
        if "compact" not in told.get("cleanup.policy", ""):
            return None
        return int(told.get("delete.retention.ms", 86_400_000))
