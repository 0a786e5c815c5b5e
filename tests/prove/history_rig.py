"""One application of a kind of operator that lives through faults, and the history it leaves.

Its runs are processes of their own behind the fault proxy. Readers of committed and of uncommitted
records go straight to the broker, the first of them while the runs work.
"""

import json
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from confluent_kafka import Message

from statestore import errors
from statestore.errors import Action, StateStoreError
from statestore.model.ids import TopicPartition
from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S
from tests.kafka.fault_proxy import FaultProxy, Plan
from tests.kafka.log_checker import (
    Datum,
    Entry,
    Evidence,
    Finding,
    Origin,
    Result,
    Seen,
    Stored,
    Topic,
    check,
)
from tests.kafka.log_evidence import Logs, Reader, group_partitions, marks_of, settled_logs
from tests.kafka.skipped_markers import skipped_markers
from tests.kafka.wire import RawLog
from tests.prove import kinds
from tests.prove.kind_rig import SETTINGS, KindRig, is_of_a_task, rig_on
from tests.prove.kinds import ACCOUNTS, EACH, OTHERS, PARTITIONS

LIFE_S = 2 * DEADLINE_S
_LIVES_IN_PEACE = 4
_FIRST, _RECORDS = 300, 180
_PATIENCE: Mapping[str, object] = {
    **SETTINGS,
    "statestore.batch.max.records": 20,
    "transaction.timeout.ms": 15_000,
    "default.api.timeout.ms": 8_000,
    # How long a client waits for an answer that was swallowed.
    "producer.socket.timeout.ms": 1_000,
    "consumer.socket.timeout.ms": 1_000,
    "admin.socket.timeout.ms": 1_000,
}
_REPARTITION = "by-rest-repartition"
# What stream tasks tell one another there; no key of ours begins with it.
_TIME_MARK = b"\x9f"
# A store that cannot be trusted is made anew from its log, but must not come to be.
_RETRIED = {
    kind.exit_code
    for kind in vars(errors).values()
    if isinstance(kind, type)
    and issubclass(kind, StateStoreError)
    and kind.action is not Action.FAIL
    and kind is not errors.TaskCorrupted
    and kind is not StateStoreError
}


class Life(NamedTuple):
    """What befalls one run: where it dies, as in STATESTORE_CRASH_AT, and what the network does."""

    crash_at: str | None = None
    plan: Plan | None = None


@dataclass
class Lived:
    """What came of an application, and what it went through.

    `skipped`: the markers that the broker owes, where something was found.
    """

    findings: list[Finding] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    kills: int = 0
    faults: int = 0
    records: int = 0
    transactions: int = 0
    answers: int = 0


class HistoryRig:
    """Enter it once; then `live`, as often as wanted, and `judged`."""

    def __init__(
        self,
        kafka: LocalKafka,
        proxy: FaultProxy,
        folder: Path,
        kind: str,
        name: str,
        *,
        client: str,
        defect: str = "",
        settings: Mapping[str, object] = {},
    ) -> None:
        self._kafka, self._proxy = kafka, proxy
        self._reads = Path(tempfile.mkdtemp(prefix="reads-", dir=folder))
        self._rig: KindRig = rig_on(
            kafka,
            folder,
            kind,
            name,
            defect=defect,
            servers=proxy.address,
            settings={**_PATIENCE, "kafka.client": client, **settings},
            variables={kinds.READS: str(self._reads), kinds.KEEPS: "1"},
        )
        self._name = name
        address = kafka.bootstrap_servers
        self._live = Reader(address, "read_committed")
        self._live.start(dict.fromkeys(self._tps(self._out), 0))
        logs = settled_logs(address, group_partitions())
        self._groups_read = {tp: log.stable_end for tp, log in logs.items()}
        self.lived = Lived()

    def close(self) -> None:
        """Let the readers go, and remove all files."""
        self._live.close()
        for folder in (self._reads, self._rig.state_dir):
            shutil.rmtree(folder, ignore_errors=True)

    def live(self, life: Life) -> bool:
        """Some input and a run among faults; whether the application may go on."""
        lived = self.lived
        self._produce(_RECORDS if self._rig.produced else _FIRST)
        self._proxy.follow(self._name, life.plan)
        code, told = self._ran(life.crash_at)
        if life.crash_at:
            lived.trace.append(f"a run that was to die at {life.crash_at} ended with code {code}")
        lived.kills += code == -signal.SIGKILL
        if code not in {0, -signal.SIGKILL, *_RETRIED}:
            lived.findings.append(Finding("run failed", told))
        elif code > 0:
            lived.trace.append(f"a run ended with code {code}: {told[-300:]}")
        return not lived.findings

    def judged(self) -> Lived:
        """All that was late arrives, the rest is processed in peace, and rules judge all of it."""
        lived = self.lived
        self._proxy.follow(self._name, None)
        self._proxy.release(self._name)
        if not lived.findings:
            self._produce(_RECORDS)
            self._end_in_peace()
        faults = self._proxy.trace(self._name)
        lived.faults = len(faults)
        lived.trace += faults
        lived.records = self._rig.produced
        if not lived.findings:
            lived.findings += self._judged()
        if lived.findings:
            lived.skipped = skipped_markers(self._kafka.bootstrap_servers)
        return lived

    def _end_in_peace(self) -> None:
        told = ""
        # One life is enough on a machine that has time for it.
        for _ in range(_LIVES_IN_PEACE):
            code, told = self._ran(None)
            if code == 0:
                return
            if code not in _RETRIED:
                break
            self.lived.trace.append(f"a run in peace ended with code {code}: {told[-300:]}")
        self.lived.findings.append(Finding("run failed", told))

    def _ran(self, crash_at: str | None) -> tuple[int, str]:
        """The exit code of a run, and what it said; a run that hangs is a finding."""
        process = self._rig.start(crash_at)
        try:
            _, err = process.communicate(timeout=LIFE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, err = process.communicate(timeout=DEADLINE_S)
            self.lived.findings.append(
                Finding("run wedged", f"it was not over in {LIFE_S:g} s: {err[-1500:]}")
            )
        assert process.returncode is not None
        return process.returncode, err[-2000:] or f"code {process.returncode}"

    def _produce(self, count: int) -> None:
        self._rig.produce(count)

    # What is judged.

    @property
    def _out(self) -> str:
        return f"{self._name}-out"

    @property
    def _repartition(self) -> str:
        return f"{self._name}-{_REPARTITION}"

    def _changelog(self, store: str) -> str:
        return f"{self._name}-{store}-changelog"

    def _tps(self, *topics: str) -> list[TopicPartition]:
        return [
            TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)
        ]

    def _judged(self) -> list[Finding]:
        address, of = self._kafka.bootstrap_servers, self._rig.of
        inner = () if of.causes else (self._repartition,)
        outputs = self._tps(self._out, *inner)
        tps = [*outputs, *self._tps(*map(self._changelog, of.stores))]
        try:
            logs = settled_logs(address, tps)
            settled = settled_logs(address, group_partitions(), self._groups_read)
        except AssertionError as error:
            return [Finding("transaction left open", str(error))]
        ends = {tp: log.stable_end for tp, log in logs.items()}
        group_ends = {tp: log.stable_end for tp, log in settled.items()}
        found = []
        for level, wanted, starts in (
            ("read_committed", {**ends, **group_ends}, self._groups_read),
            ("read_uncommitted", ends, {}),
        ):
            with closing(Reader(address, level)) as reader:
                reader.start({**dict.fromkeys(ends, 0), **starts})
                found.append(reader.read_to(wanted))
        seen, everything = found
        try:
            live = self._live.read_to({tp: ends[tp] for tp in self._tps(self._out)})
        except AssertionError as error:
            return [Finding("reader stuck", str(error))]
        evidence = self._evidence(live, seen, everything, logs, settled)
        self.lived.transactions = len(
            {mark.of for marks in evidence.commits.values() for mark in marks}
        )
        self.lived.answers = sum(map(len, evidence.seen.values()))
        return check(evidence)

    def _evidence(
        self,
        live: Logs,
        seen: Logs,
        everything: Logs,
        logs: Mapping[TopicPartition, RawLog],
        settled: Mapping[TopicPartition, RawLog],
    ) -> Evidence:
        rig = self._rig
        final = {tp: self._entries(tp, seen[tp]) for tp in logs}
        commits = marks_of(seen, settled, self._name)
        ends = {TopicPartition(*tp): end for tp, end in rig.input_ends().items()}
        if rig.kind == "join":
            numbers = range(0, rig.produced, OTHERS)
            for partition in range(PARTITIONS):
                tp = TopicPartition(f"{self._name}-others", partition)
                ends[tp] = sum(number % PARTITIONS == partition for number in numbers)
        return Evidence(
            topics=self._topics(final),
            ends=ends,
            committed=[
                {tp: self._entries(tp, messages) for tp, messages in live.items()},
                final,
            ],
            uncommitted=[{tp: self._entries(tp, everything[tp]) for tp in logs}],
            raw={tp: log.batches for tp, log in logs.items()},
            commits=commits,
            stores=self._stores(),
            seen=self._seen(),
            imbalance={self._changelog("books"): _imbalance},
        )

    def _topics(self, final: Mapping[TopicPartition, Sequence[Entry]]) -> dict[str, Topic]:
        """What must be in each topic, with what causes it."""
        of, produced = self._rig.of, self._rig.produced
        if of.causes is not None:
            results = [
                Result(key, _text(value), self._origins(of.causes(key, value)))
                for key, value in of.out(produced)
            ]
            return {self._out: Topic(results, is_ordered=of.ordered)}
        # Which input comes first where partitions meet, the topic between says itself.
        between = [
            Result(f"r{number % 5}", _text(number), self._origins({"in": number}))
            for number in range(produced)
        ]
        counted: dict[Datum, int] = {}
        results = []
        for tp in self._tps(self._repartition):
            for entry in final[tp]:
                counted[entry.key] = counted.get(entry.key, 0) + 1
                causes = frozenset({Origin(*tp, entry.offset)})
                results.append(Result(entry.key, _text(counted[entry.key]), causes))
        return {self._repartition: Topic(between), self._out: Topic(results)}

    def _origins(self, causes: Mapping[str, int]) -> frozenset[Origin]:
        """Where the inputs with these numbers are; a partition has every second number."""
        every = {"in": PARTITIONS, "others": PARTITIONS * OTHERS}
        return frozenset(
            Origin(f"{self._name}-{topic}", number % PARTITIONS, number // every[topic])
            for topic, number in causes.items()
        )

    def _stores(self) -> dict[TopicPartition, Stored]:
        return {
            TopicPartition(self._changelog(store), partition): Stored(
                {key: self._datum(value) for key, value in rows}, offset
            )
            for store, form in self._rig.of.stores.items()
            for partition, (rows, offset) in self._rig.stored(store, form).items()
        }

    def _seen(self) -> dict[TopicPartition, list[Seen]]:
        """What the runs' own readers wrote down; the last line of a killed one may be torn."""
        found: dict[TopicPartition, list[Seen]] = {}
        for path in sorted(self._reads.glob("*.jsonl")):
            tp = TopicPartition(self._changelog("books"), int(path.name.partition("-")[0]))
            for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
                if line.endswith("\n"):
                    rows = {
                        account.encode(): None if row is None else _text(row)
                        for account, row in json.loads(line).items()
                    }
                    found.setdefault(tp, []).append(Seen(path.stem, rows))
        return found

    def _entries(self, tp: TopicPartition, messages: Iterable[Message]) -> list[Entry]:
        is_changelog = tp.topic not in {self._out, self._repartition}
        found = []
        for message in messages:
            key, value, offset = message.key() or b"", message.value(), message.offset()
            assert offset is not None
            if is_changelog and not is_of_a_task(key):
                found.append(Entry(offset, key, None if value is None else self._datum(value)))
            elif not is_changelog and not key.startswith(_TIME_MARK):
                found.append(Entry(offset, key.decode(), _text(json.loads(value or b"null"))))
        return found

    def _datum(self, value: bytes) -> Datum:
        """A row of a store: as it is, but books are read."""
        return _text(json.loads(value)) if self._rig.kind == "bank" else value


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _imbalance(rows: Mapping[Datum, Datum]) -> int:
    """How much more there is in all accounts than in the beginning."""
    balances = {key: json.loads(str(row))[0] for key, row in rows.items()}
    return sum(balances.get(account.encode(), EACH) - EACH for account in ACCOUNTS)
