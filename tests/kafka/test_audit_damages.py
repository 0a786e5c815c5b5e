"""Each kind of row of each kind of store, damaged, and what the audit says of it.

Shows I22.
"""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

import statestore as ss
from statestore.layout.audits import AuditRecord, AuditVerdict
from statestore.operations.audits.checks import AuditCheck
from statestore.operations.audits.perform import audit
from statestore.operations.exports.create import create_export
from statestore.runtime import Runtime
from statestore.settings import Settings
from statestore.testing.local_kafka import LocalKafka
from tests.audit_rig import Audited, Rows
from tests.kafka import audit_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import START_MS, App

pytestmark = pytest.mark.kafka

Damage = Callable[[Rows], dict[bytes, bytes | None]]
"""What to write into a table, given its rows."""


@pytest.fixture(scope="module")
def sound(kafka: LocalKafka, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    state_dir = tmp_path_factory.mktemp("damages") / "state"
    app = App(kafka, "damages", state_dir).create_topics(rates=2, pairs=2)
    with mock.patch.dict(os.environ, {PREFIX_VARIABLE: app.name}):
        topology = audit_pipelines.every_row()
    for begin in (0, 150):
        numbers = range(begin, begin + 150)
        rows = [(f"k{n % 20}", json.dumps({"number": n}).encode(), START_MS + n) for n in numbers]
        app.produce_raw(rows)
        rates = [(f"r{n % 10}", None if n % 7 < 2 else b"%d" % n, START_MS + n) for n in numbers]
        app.produce_raw(rates, topic="rates")
        ss.run(topology, app.run_settings())
    return Audited(app, {})


def verdict(one: Audited, *stores: str) -> AuditRecord:
    return audit(Runtime(one.settings()), stores)


def gone(prefix: bytes) -> Damage:
    """The first row that begins so is deleted."""
    return lambda rows: {min(row for row in rows if row.startswith(prefix)): None}


def without(prefix: bytes) -> Damage:
    """All rows that begin so are deleted."""
    return lambda rows: dict.fromkeys(row for row in rows if row.startswith(prefix))


def flipped(prefix: bytes) -> Damage:
    """One bit of the value of the first row that begins so has changed."""

    def damage(rows: Rows) -> dict[bytes, bytes | None]:
        row = min(row for row in rows if row.startswith(prefix) and rows[row])
        return {row: rows[row][:-1] + bytes([rows[row][-1] ^ 1])}

    return damage


def of_a_latest(kind: int) -> Damage:
    """One bit of the latest version of a key has changed: of its value, or of when it was deleted.

    `kind` 0: it is a delete, 1: it is a value.
    """

    def damage(rows: Rows) -> dict[bytes, bytes | None]:
        row = min(row for row, value in rows.items() if value[0] == kind)
        return {row: rows[row][:-1] + bytes([rows[row][-1] ^ 1])}

    return damage


def raised_bound(rows: Rows) -> dict[bytes, bytes | None]:
    """All history has gone, says the store, whose versions are deleted."""
    clock = rows[b"c"]
    writes: dict[bytes, bytes | None] = {row: None for row in rows if row.startswith(b"v")}
    return writes | {b"c": clock[:8] + clock[:8] + clock[16:]}


def set_to(prefix: bytes, value: bytes) -> Damage:
    """All rows that begin so have this value."""
    return lambda rows: {row: value for row in rows if row.startswith(prefix)}


def put(row: bytes, value: bytes) -> Damage:
    """There is a row more, or another value."""
    return lambda _rows: {row: value}


def moved(prefix: bytes, at: int) -> Damage:
    """A bit of the key of the first row that begins so has changed."""

    def damage(rows: Rows) -> dict[bytes, bytes | None]:
        row = min(row for row in rows if row.startswith(prefix))
        return {row: None, row[:at] + bytes([row[at] ^ 1]) + row[at + 1 :]: rows[row]}

    return damage


def lower(prefix: bytes) -> Damage:
    """The number in the first row that begins so is one less."""

    def damage(rows: Rows) -> dict[bytes, bytes | None]:
        row = min(row for row in rows if row.startswith(prefix))
        return {row: struct.pack(">q", struct.unpack(">q", rows[row])[0] - 1)}

    return damage


def other_clock(seconds: int) -> Damage:
    """The stream time of a history is another one, its bound the same."""

    def damage(rows: Rows) -> dict[bytes, bytes | None]:
        clock = rows[b"c"]
        now = int.from_bytes(clock[:8], "big") + seconds * 1000
        return {b"c": now.to_bytes(8, "big") + clock[8:]}

    return damage


BESIDE = "offsets"
FAR = struct.pack(">q", 1 << 40)
DERIVED = AuditCheck.DERIVED_ROWS
TIMED = ("counts", "windows", "slides", "recent")
"""The stores whose rows have times that their changelogs have as well."""
EVERY = ("counts", "windows", "slides", "sessions", "threes", "recent", "reminders", "rates")
DAMAGES: list[tuple[str, str, Damage, AuditCheck]] = [
    ("sessions", "data", gone(b"\xff"), DERIVED),
    ("sessions", "data", flipped(b"\xff"), DERIVED),
    ("sessions", "data", set_to(b"\xff", b""), DERIVED),
    ("sessions", "data", put(b"\xffnobody", bytes(16)), DERIVED),
    ("sessions", "data", gone(b"\0"), AuditCheck.NONE_MISSING),
    ("sessions", "data", flipped(b"t"), AuditCheck.EQUAL_VALUES),
    ("windows", "data", gone(b"\0"), AuditCheck.NONE_MISSING),
    ("windows", "data", flipped(b"t"), AuditCheck.EQUAL_VALUES),
    ("windows", "data", put(b"\xff\0\0\0\1k" + bytes(8), b""), DERIVED),
    ("slides", "data", gone(b"\xff"), DERIVED),
    ("slides", "data", without(b"\xff"), DERIVED),
    ("slides", "data", moved(b"\xff", -1), DERIVED),
    ("slides", "data", put(b"\xff\0\0\0\1k" + bytes(8), b""), DERIVED),
    ("slides", "data", gone(b"\0"), AuditCheck.NONE_MISSING),
    ("recent", "data", gone(b"k"), AuditCheck.NONE_MISSING),
    ("recent", BESIDE, gone(b"x"), DERIVED),
    ("recent", BESIDE, without(b"x"), DERIVED),
    ("recent", BESIDE, moved(b"x", -1), DERIVED),
    ("recent", BESIDE, gone(b"t"), DERIVED),
    ("recent", BESIDE, set_to(b"t", bytes(8)), DERIVED),
    ("recent", BESIDE, gone(b"e"), DERIVED),
    ("recent", BESIDE, set_to(b"n", b"\0"), DERIVED),
    ("reminders", "data", gone(b"k"), AuditCheck.NONE_MISSING),
    ("reminders", "data", gone(b"e"), AuditCheck.NONE_MISSING),
    ("threes", "data", flipped(b"k"), AuditCheck.EQUAL_VALUES),
    ("counts", "data", flipped(b"k"), AuditCheck.EQUAL_VALUES),
    ("rates", "data", of_a_latest(1), AuditCheck.EQUAL_VALUES),
    ("rates", "data", of_a_latest(0), DERIVED),
    ("rates", "history", gone(b"v"), AuditCheck.NONE_MISSING),
    ("rates", "history", moved(b"v", 8), DERIVED),
    ("rates", "history", moved(b"v", 12), DERIVED),
    ("rates", "history", without(b"d"), DERIVED),
    ("rates", "history", put(b"z", b""), AuditCheck.READABLE),
    ("rates", "history", put(b"c", b"\0"), AuditCheck.READABLE),
    ("rates", "history", raised_bound, AuditCheck.NONE_MISSING),
    *[(store, BESIDE, set_to(b"p", FAR), AuditCheck.INPUT_POSITIONS) for store in EVERY],
    *[(store, BESIDE, lower(b"p"), AuditCheck.BEHIND_COMMITS) for store in EVERY],
    *[(store, BESIDE, gone(b"p"), AuditCheck.BEHIND_COMMITS) for store in EVERY],
    *[(store, BESIDE, set_to(b"o", FAR), AuditCheck.STABLE_OFFSETS) for store in EVERY],
    *[(store, BESIDE, gone(b"o"), AuditCheck.READABLE) for store in EVERY],
    *[(store, BESIDE, lower(b"t"), AuditCheck.EQUAL_VALUES) for store in TIMED],
    *[(store, BESIDE, flipped(b"t"), AuditCheck.EQUAL_VALUES) for store in TIMED],
    *[(store, BESIDE, gone(b"t"), AuditCheck.EQUAL_VALUES) for store in TIMED],
    *[(store, BESIDE, put(b"tnobody", bytes(8)), DERIVED) for store in TIMED],
    *[(store, BESIDE, set_to(b"m", bytes(8)), DERIVED) for store in TIMED],
    *[(store, BESIDE, gone(b"m"), DERIVED) for store in TIMED],
    *[(store, BESIDE, put(b"x" + bytes(8), b""), DERIVED) for store in ("sessions", "rates")],
    *[(store, BESIDE, put(b"tk", bytes(8)), DERIVED) for store in ("sessions", "rates")],
    *[(store, BESIDE, put(b"v", b""), DERIVED) for store in ("counts", "sessions", "windows")],
    ("recent", BESIDE, lower(b"n"), AuditCheck.STREAM_TIME),
    ("recent", BESIDE, set_to(b"n", FAR), AuditCheck.STREAM_TIME),
    ("recent", BESIDE, gone(b"n"), AuditCheck.STREAM_TIME),
    ("rates", "history", other_clock(-1), AuditCheck.STREAM_TIME),
    ("rates", "history", other_clock(1), AuditCheck.STREAM_TIME),
    ("rates", "history", gone(b"c"), AuditCheck.STREAM_TIME),
    *[(store, BESIDE, gone(b"f"), AuditCheck.READABLE) for store in EVERY],
    *[(store, BESIDE, put(b"f", b"{"), AuditCheck.READABLE) for store in EVERY],
    *[
        (store, BESIDE, put(b"f", b'{"kind":"global","version":1}'), AuditCheck.FORMAT)
        for store in EVERY
    ],
    ("counts", BESIDE, put(b"f", b'{"kind":"versioned","version":1}'), AuditCheck.FORMAT),
    ("rates", BESIDE, put(b"f", b'{"kind":"keyvalue","version":1}'), AuditCheck.FORMAT),
    ("counts", BESIDE, put(b"f", b'{"kind":"keyvalue","version":9}'), AuditCheck.FORMAT),
    ("rates", BESIDE, put(b"f", b'{"kind":"versioned","version":1}'), DERIVED),
    *[(store, BESIDE, put(b"q", b""), DERIVED) for store in EVERY],
]


@pytest.mark.thorough
def test_sound_stores_of_every_kind_are_right(sound: Audited) -> None:
    record = verdict(sound)
    assert record.failures == []
    assert record.verdict is AuditVerdict.RIGHT
    assert {*EVERY} <= {store.store for store in record.stores}


def test_damages_of_many_stores_are_seen_at_once(sound: Audited, tmp_path: Path) -> None:
    one = sound.copy(tmp_path / "state")
    planted = {store: (table, damage, check) for store, table, damage, check in reversed(DAMAGES)}
    for store, (table, damage, _) in planted.items():
        one.write(store, 0, damage(one.rows(store, 0, table)), table)
    record = verdict(one)
    failed = {(failure.store, failure.check) for failure in record.failures}
    assert {(store, check) for store, (_, _, check) in planted.items()} - failed == set()


def test_the_format_row_of_an_export_is_read_from_its_files(sound: Audited, tmp_path: Path) -> None:
    """The manifest of the export says of which kind the store was deployed."""
    one = sound.copy(tmp_path / "state")
    one.write("counts", 0, {b"f": b'{"kind":"session","version":1}'}, BESIDE)
    settings = Settings.of(one.settings(**{"statestore.export.target": str(tmp_path / "exports")}))
    export = create_export(Runtime(settings)).export_id
    record = audit(Runtime(settings), ["counts", "windows"], export=export)
    found = {(failure.store, failure.check) for failure in record.failures}
    assert found == {("counts", AuditCheck.FORMAT)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_damage_is_seen(sound: Audited, tmp_path: Path) -> None:
    """One copy of the state is damaged, judged and repaired again for each of them."""
    one = sound.copy(tmp_path / "state")
    unseen = []
    for number, (store, table, damage, check) in enumerate(DAMAGES):
        before = one.rows(store, 0, table)
        writes = damage(before)
        assert writes, (number, store, table)
        one.write(store, 0, writes, table)
        record = verdict(one, store)
        failed = {failure.check for failure in record.failures}
        if check not in failed:
            unseen.append((number, store, table, check, record.verdict, failed))
        one.write(store, 0, {row: before.get(row) for row in writes}, table)
    assert unseen == []
    assert verdict(one).failures == []


@pytest.mark.slow
@pytest.mark.parametrize("store", ["counts", "rates"])
def test_a_flipped_bit_in_any_file_of_rows_is_seen(
    sound: Audited, tmp_path: Path, store: str
) -> None:
    """The files of the offsets are files like others: each of their blocks is read."""
    one = sound.copy(tmp_path / "state")
    files = sorted(one.folder(store, 0).glob("*.sst"))
    assert files
    seen = []
    for path in files:
        data = path.read_bytes()
        for at in (8, 40):  # of the first block, whose rows begin with the file
            path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            failed = {failure.check for failure in verdict(one, store).failures}
            seen.append((path.name, at, AuditCheck.READABLE in failed))
        path.write_bytes(data)
    assert [place for place in seen if not place[-1]] == []
    assert verdict(one, store).passed
