"""The pipeline of the tests that change the partition count on a real broker."""

import statestore as ss
from statestore import serdes
from tests.kafka.run_pipelines import prefix


def several() -> ss.Topology:
    """Counts by user below a repartition, and a total, a table in memory and history by key."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    records = b.stream(f"{prefix()}-in")
    by_user = records.group_by(lambda _key, value: value["user"], name="by-user")
    by_user.count(ss.Materialized("counts", caching=False)).to_stream().to(f"{prefix()}-out")
    by_key = records.group_by_key()
    by_key.count(ss.Materialized("per-key", value_serde=serdes.INT64))
    by_key.count(
        ss.Materialized(
            ss.in_memory_key_value_store("seen", key_serde=serdes.STRING, value_serde=serdes.INT64)
        )
    )
    by_key.windowed_by(ss.TumblingWindows(1000, grace=10**9, retention=10**10)).count("panes")
    records.to_table(ss.Materialized("past", history_retention=10**10), name="past")
    return b.build()


def by_region(_topic: str, key: str, _value: object, partitions: int) -> int | None:
    """Places users by their number's last digit; those of 0 are left to the hash."""
    return int(key[-1]) % partitions if key[-1:].isdigit() and key[-1] != "0" else None


def placed() -> ss.Topology:
    """Counts, windows and versions below a repartition with a partitioner of its own."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    users = b.stream(f"{prefix()}-in").select_key(lambda _key, value: value["user"], name="users")
    apart = users.repartition("by-user", partitioner=by_region)
    by_user = apart.group_by_key()
    by_user.count(ss.Materialized("counts", caching=False)).to_stream().to(f"{prefix()}-out")
    by_user.windowed_by(ss.TumblingWindows(1000, grace=10**9, retention=10**10)).count("panes")
    apart.to_table(ss.Materialized("past", history_retention=10**10), name="past")
    return b.build()
