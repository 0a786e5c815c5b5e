"""What is counted: per commit, never per record.

As a dict always, as OpenTelemetry instruments when somebody listens.

Without an OpenTelemetry SDK the instruments are no-ops; the numbers behind `metrics()` are plain
integers.
"""

from dataclasses import dataclass, field

from opentelemetry import metrics as otel

_meter = otel.get_meter("statestore")
_commits = _meter.create_counter("statestore.commits", unit="1", description="Store commits")
_commit_seconds = _meter.create_histogram(
    "statestore.commit.duration", unit="s", description="Time of a store commit"
)
_written = _meter.create_counter(
    "statestore.records.written", unit="1", description="Rows committed"
)
_restored = _meter.create_counter(
    "statestore.records.restored", unit="1", description="Rows restored"
)
_quarantined = _meter.create_counter(
    "statestore.stores.quarantined", unit="1", description="Stores renamed out of the way"
)


@dataclass(slots=True)
class StoreMetrics:
    """The counters of one open store (KIP-892: commit-rate, commit-latency-*; SEMANTICS S11)."""

    store: str
    opened_s: float
    commits: int = 0
    commit_seconds: float = 0.0
    commit_seconds_max: float = 0.0
    rows_written: int = 0
    rows_restored: int = 0
    engine_flushes: int = 0
    _attributes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._attributes = {"store": self.store}

    def committed(self, seconds: float, rows: int) -> None:
        """One commit of `rows` writes that took `seconds`."""
        self.commits += 1
        self.commit_seconds += seconds
        self.commit_seconds_max = max(self.commit_seconds_max, seconds)
        self.rows_written += rows
        _commits.add(1, self._attributes)
        _commit_seconds.record(seconds, self._attributes)
        _written.add(rows, self._attributes)

    def restored(self, rows: int) -> None:
        """`rows` changelog records written by a restore."""
        self.rows_restored += rows
        _restored.add(rows, self._attributes)

    def as_dict(self, now_s: float, uncommitted_bytes: int) -> dict[str, float]:
        """Kafka Streams' metric names; rates per second since open; latencies in milliseconds."""
        age_s = max(now_s - self.opened_s, 1e-9)
        return {
            "commit-rate": self.commits / age_s,
            "commit-latency-avg": 1000 * self.commit_seconds / max(self.commits, 1),
            "commit-latency-max": 1000 * self.commit_seconds_max,
            "put-rate": self.rows_written / age_s,
            "restore-rate": self.rows_restored / age_s,
            "uncommitted-bytes": float(uncommitted_bytes),
            "flush-rate": 0.0,
            "flush-latency-avg": 0.0,
            "flush-latency-max": 0.0,
        }


def count_quarantine(store: str, reason: str) -> None:
    """One store was moved to quarantine."""
    _quarantined.add(1, {"store": store, "reason": reason})
