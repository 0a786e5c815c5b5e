"""Pipelines in three versions, over a store of each kind, and a task that is deployed with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import statestore as ss
from statestore import serdes
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.running.run import Run, RunRequest
from statestore.stores.in_windows import TIME_ROW
from statestore.stores.migration import MARK
from tests.contract.task_rig import TaskRig

IN = TopicPartition("in", 0)
V1 = serdes.INT64
V2: ss.Serde[Any] = ss.Serde("V2", lambda value: json.dumps(value).encode(), json.loads)
V3: ss.Serde[Any] = ss.Serde(
    "V3", lambda value: b"3" + json.dumps(value).encode(), lambda data: json.loads(data[1:])
)
SERDES = (V1, V2, V3)


def to_v2(number: int) -> dict[str, int]:
    return {"n": number}


def to_v3(value: dict[str, int]) -> list[int]:
    return [value["n"], 0]


STEPS = (ss.Migration(V1, to_v2), ss.Migration(V2, to_v3))
Shaped = Callable[[int], Any]
SHAPES: tuple[Shaped, ...] = (int, to_v2, lambda number: to_v3(to_v2(number)))


def plain(value: Any) -> int:
    """The number in a value of any version."""
    if isinstance(value, dict):
        return int(value["n"])
    return int(value[0]) if isinstance(value, list) else int(value)


def kept(version: int, store: str = "kept", **more: Any) -> ss.Materialized[Any, Any]:
    return ss.Materialized(
        store, value_serde=SERDES[version], migrate=STEPS[:version] or None, **more
    )


def begun(version: int) -> tuple[ss.StreamsBuilder, ss.KStream[str, Any]]:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=SERDES[version])
    numbers = builder.stream("in", value_serde=serdes.INT64)
    return builder, numbers


def as_table(version: int) -> ss.Topology:
    builder, numbers = begun(version)
    table = numbers.map_values(SHAPES[version]).to_table(kept(version))
    numbers.join(table, lambda number, row: SHAPES[version](plain(row))).to("out")
    return builder.build()


def summed(version: int) -> Callable[[str, int, Any], Any]:
    return lambda _key, number, total: SHAPES[version](number + plain(total))


def as_aggregate(version: int) -> ss.Topology:
    builder, numbers = begun(version)
    table = numbers.group_by_key().aggregate(
        lambda: SHAPES[version](0), summed(version), kept(version)
    )
    table.to_stream().to("out")
    return builder.build()


def in_windows(version: int, windows: Any) -> ss.Topology:
    builder, numbers = begun(version)
    opened = numbers.group_by_key().windowed_by(windows)
    made = opened.aggregate(lambda: SHAPES[version](0), summed(version), kept(version))
    made.to_stream().to("out")
    return builder.build()


def as_window(version: int) -> ss.Topology:
    return in_windows(version, ss.TumblingWindows(1_000_000))


def as_count_window(version: int) -> ss.Topology:
    return in_windows(version, ss.CountWindows.of(1000))


def as_session(version: int) -> ss.Topology:
    builder, numbers = begun(version)
    table = (
        numbers.group_by_key()
        .windowed_by(ss.SessionWindows(1_000_000))
        .aggregate(
            lambda: SHAPES[version](0),
            summed(version),
            lambda _key, one, other: SHAPES[version](plain(one) + plain(other)),
            kept(version),
        )
    )
    table.to_stream().to("out")
    return builder.build()


def as_history(version: int) -> ss.Topology:
    builder, numbers = begun(version)
    table = numbers.map_values(SHAPES[version]).to_table(kept(version, history_retention=1_000_000))
    numbers.join(table, lambda number, row: SHAPES[version](plain(row))).to("out")
    return builder.build()


def as_view(version: int) -> ss.Topology:
    builder, numbers = begun(version)
    table = numbers.to_table("numbers").map_values(SHAPES[version], kept(version))
    numbers.join(table, lambda number, row: SHAPES[version](plain(row))).to("out")
    return builder.build()


def as_group(version: int) -> ss.Topology:
    """Groups of a table take the old value of a row out and put the new one in."""
    builder, numbers = begun(version)
    table = numbers.map_values(SHAPES[version]).to_table(kept(version))
    table.group_by(
        lambda _key, value: ("all", value), key_serde=serdes.STRING, value_serde=SERDES[version]
    ).aggregate(
        lambda: 0,
        lambda _key, value, total: total + plain(value),
        lambda _key, value, total: total - plain(value),
        ss.Materialized("totals", value_serde=serdes.INT64),
    ).to_stream().to("out")
    return builder.build()


class Adding:
    """A processor with a store of its own."""

    def __init__(self, version: int, context: "ss.ProcessorContext[str, Any]") -> None:
        self._version = version
        self._context = context
        self._store: ss.KeyValueStore[str, Any] = context.store("kept")

    def process(self, record: ss.Record[str, int]) -> None:
        total = plain(self._store.get(record.key) or 0) + (record.value or 0)
        self._store.put(record.key, SHAPES[self._version](total))
        self._context.forward(record._replace(value=SHAPES[self._version](total)))


def as_processor(version: int, ttl_ms: int | None = None) -> ss.Topology:
    builder, numbers = begun(version)
    spec = ss.persistent_key_value_store(
        "kept",
        key_serde=serdes.STRING,
        value_serde=SERDES[version],
        migrate=STEPS[:version] or None,
        ttl=ttl_ms,
    )
    numbers.process(lambda context: Adding(version, context), spec, name="adding").to("out")
    return builder.build()


def as_expiring(version: int) -> ss.Topology:
    return as_processor(version, ttl_ms=1000)


MAKES = [as_table, as_aggregate, as_window, as_count_window, as_session]
MAKES += [as_history, as_view, as_processor, as_expiring]
Make = Callable[[int], ss.Topology]


class World:
    """One task whose pipeline is deployed again and again."""

    def __init__(self, root: Path, make: Make, guarantee: str = "exactly_once") -> None:
        self.make = make
        self.rig = TaskRig(make(0), root, guarantee)
        self.sent = 0
        self.seen = 0

    def deploy(self, version: int) -> None:
        """End the last life and begin one with the pipeline of this version."""
        self.rig.end()
        self.rig.topology = self.make(version)
        with Run(self.rig.runtime, self.rig.topology, RunRequest()):
            pass
        self.rig.start()

    def send(self, **numbers: int) -> None:
        for key, number in numbers.items():
            self.sent += 1
            record: Record[bytes | None, bytes | None] = Record(
                key.encode(), serdes.INT64.serialize(number), self.sent
            )
            self.rig.broker.produce(IN, record)

    def process(self) -> None:
        (task,) = self.rig.running
        while task.step(0):
            pass
        task.step_commit()

    def rows(self) -> list[bytes]:
        """The values that the changelog holds, as bytes, without those of the store's own rows.

        Of a store with history, these are the latest versions.
        """
        logged = self.rig.changelog("kept")
        logged.pop(TIME_ROW, None)
        if self.make is as_history:
            # Each key of the log ends with the version's time.
            latest = {at[:-8]: logged[at] for at in sorted(logged) if len(at) > 8}
            return sorted(latest.values())
        return sorted(logged.values())

    def generations(self) -> list[int]:
        return sorted(row[len(MARK)] if row.startswith(MARK) else 0 for row in self.rows())

    def out(self, version: int) -> list[Any]:
        """What went out since the last question, read with the plain serde."""
        found = [record.value for record in self.rig.broker.records("out")][self.seen :]
        self.seen += len(found)
        return [None if one is None else SERDES[version].deserialize(one) for one in found]
