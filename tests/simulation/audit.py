"""What must be true: judged from raw logs and rows, by code that shares nothing with the library.

`Watch` looks after every event, `audit` once everything is at rest.
"""

import builtins
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId
from statestore.testing.memory_broker import MemoryBroker
from tests.simulation.pipeline import is_refused, is_unreadable, key_of, user_of
from tests.simulation.volume import Volume

_STORES = {"sums": 0, "counts": 1, "seen": 1}
_Rows = dict[str, Any]
_RAISED = re.compile(r"\b([A-Z]\w+)\(")


class Watch:
    """Committed input offsets and commit numbers only rise, together."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._last: dict[tuple[str, int], tuple[int, str]] = {}

    def look(self) -> list[str]:
        found = []
        for (_, (topic, partition)), (offset, metadata) in self._broker.state.groups.items():
            at, seen = (topic, partition), (offset, metadata)
            before = self._last.get(at)
            if before == seen:
                continue
            self._last[at] = seen
            if before is None:
                continue
            number, number_before = _number(metadata), _number(before[1])
            if offset < before[0] or number <= number_before:
                found.append(
                    f"{topic}-{partition}: commit {number} at {offset} "
                    f"after commit {number_before} at {before[0]}"
                )
        return found


def is_mistake_in_code(finding: str) -> bool:
    """Whether a finding is an error of Python: then the code does not run, and no rule was met."""
    names = _RAISED.findall(finding)
    return any(isinstance(getattr(builtins, name, None), type) for name in names)


def _number(metadata: str) -> int:
    number: int = json.loads(metadata)["number"]
    return number


def audit(
    broker: MemoryBroker, volume: Volume, layout: StateLayout, fed: set[int], partitions: int
) -> list[str]:
    """Every duplicate, loss and disagreement; empty is what exactly-once means."""
    poison = {number for number in fed if is_unreadable(number) or is_refused(number)}
    wanted = _wanted(fed - poison)
    found = _passed(broker, fed - poison) + _buried(broker, poison) + _updates(broker, wanted)
    for store, sub_topology in _STORES.items():
        folded: _Rows = {}
        for record in broker.records(f"sim-{store}-changelog"):
            folded[(record.key or b"").decode()] = _value(store, record.value)
        if _sorted(folded) != wanted[store]:
            found.append(f"changelog of {store}: {_difference(folded, wanted[store])}")
        rows: _Rows = {}
        for partition in range(partitions):
            task_id = TaskId(sub_topology, partition)
            task, path = layout.task_dir(task_id), layout.store_dir(task_id, store)
            for key, value in volume.rows(path, "data").items():
                rows[key.decode()] = _value(store, value)
            found += _checkpoint(task, store, volume.rows(path, "offsets"))
        if rows != folded:
            found.append(f"store {store} is not its changelog: {_difference(rows, folded)}")
    return found + _input_offsets(broker, partitions)


def _wanted(fed: set[int]) -> dict[str, _Rows]:
    sums: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    seen: dict[str, list[int]] = defaultdict(list)
    for number in sorted(fed):
        sums[key_of(number)] += number
        counts[user_of(number)] += 1
        seen[user_of(number)].append(number)
    return {"sums": dict(sums), "counts": dict(counts), "seen": dict(seen)}


def _passed(broker: MemoryBroker, fed: set[int]) -> list[str]:
    found = []
    rows = [(r.partition, *json.loads(r.value or b"")) for r in broker.records("passed")]
    times = Counter(number for *_, number in rows)
    if twice := {number: n for number, n in times.items() if n > 1}:
        found.append(f"passed more than once: {twice}")
    if lost := sorted(fed - times.keys()):
        found.append(f"never passed: {lost}")
    if invented := sorted(times.keys() - fed):
        found.append(f"passed but never committed by a feeder: {invented}")
    order: dict[tuple[int, int], list[int]] = defaultdict(list)
    for partition, read_from, offset, _ in rows:
        order[partition or 0, read_from].append(offset)
    found += [f"passed out of order: {o}" for o in order.values() if o != sorted(o)]
    return found


def _buried(broker: MemoryBroker, poison: set[int]) -> list[str]:
    """Each poison record has one dead letter, as it was fed; there are no others."""
    letters = Counter(int((r.value or b"").removeprefix(b"{")) for r in broker.records("dead"))
    if letters == Counter(poison):
        return []
    return [f"buried: {sorted(letters.items())}, want each of {sorted(poison)} once"]


def _updates(broker: MemoryBroker, wanted: Mapping[str, _Rows]) -> list[str]:
    """What the stores told: every count once and in order; the others end at their last value."""
    found = []
    told: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for store in _STORES:
        for record in broker.records(store):
            told[store, (record.key or b"").decode()].append(_value(store, record.value))
    for user, total in wanted["counts"].items():
        if told["counts", user] != list(range(1, total + 1)):
            found.append(f"counts of {user}: {told['counts', user]}, want 1..{total}")
    for key, total in wanted["sums"].items():
        sums = told["sums", key]
        if sums[-1:] != [total] or sums != sorted(sums):
            found.append(f"sums of {key}: {sums}, want them to grow to {total}")
    for user, numbers in wanted["seen"].items():
        lists = told["seen", user]
        grown = all(a == b[: len(a)] and len(a) < len(b) for a, b in pairwise(lists))
        if not grown or not lists or sorted(lists[-1]) != numbers:
            found.append(f"lists of {user}: {lists}, want them to grow to {numbers}")
    return found


def _checkpoint(task: Path, store: str, rows: Mapping[bytes, bytes]) -> list[str]:
    """The file beside the stores says what their rows say."""
    lines = (task / ".checkpoint").read_text().splitlines()[2:]
    partition = int(task.name.rpartition("_")[2])
    written = [int(line.split()[2]) for line in lines if line.startswith(f"sim-{store}-changelog ")]
    key = b"o" + f"sim-{store}-changelog".encode() + b"\0" + partition.to_bytes(4)
    held = [int.from_bytes(rows[key])] if key in rows else []
    if written != held:
        return [f"{task.name}/.checkpoint has {written} for {store}, the store has {held}"]
    return []


def _input_offsets(broker: MemoryBroker, partitions: int) -> list[str]:
    found = []
    committed = {tuple(tp): at.offset for (_, tp), at in broker.state.groups.items()}
    for topic in ("in", "sim-by-user-repartition"):
        for partition, log in enumerate(broker.state.topics[topic]):
            at = committed.get((topic, partition), 0)
            if at != log.end:
                found.append(f"{topic}-{partition}: committed {at}, the log ends at {log.end}")
    return found


def _value(store: str, value: bytes | None) -> Any:
    if value is None:
        return None
    return int.from_bytes(value) if store == "counts" else json.loads(value)


def _sorted(rows: _Rows) -> _Rows:
    """Lists in the order of numbers: partitions of the input meet in any order."""
    return {key: sorted(v) if isinstance(v, list) else v for key, v in rows.items()}


def _difference(found: _Rows, wanted: Mapping[str, Any]) -> str:
    keys = sorted(k for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k))
    return ", ".join(f"{k} is {found.get(k)}, want {wanted.get(k)}" for k in keys[:3])
