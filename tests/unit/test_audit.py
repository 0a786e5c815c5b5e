"""The judgement of an audit: rows of both sides in, findings and a verdict out.

Shows I22.
"""

import msgspec
import pytest

from statestore.errors import AuditFailed, NotChecked
from statestore.kafka.partitioner import murmur2_partition
from statestore.layout.audits import AuditedStore, AuditFailure, AuditRecord, AuditVerdict
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.audits.audit import (
    StoreAudit,
    failure_line,
    placing_hash,
    require_pass,
    verdict_of,
)
from statestore.operations.audits.both_sides import (
    AuditRow,
    AuditRows,
    ReplayedLog,
    Subject,
    replay_log,
)
from statestore.operations.audits.checks import AuditCheck
from statestore.runtime import PARTITIONERS
from statestore.stores.logged import versions
from statestore.stores.migration import MARK
from statestore.stores.versioned.layout import TIME_MIN, version_row
from statestore.testing.memory_broker import MemoryBroker

LOG = TopicPartition("shop-counts-changelog", 0)
SUBJECT = Subject(
    store="counts",
    stream_task="0_0",
    kind="keyvalue",
    path="",
    topic=LOG.topic,
    partition=0,
    partitions=1,
    offset_next=10,
    log_end=10,
    last_offset=None,
    bound_ms=TIME_MIN,
    is_whole=True,
    key_serde="STRING",
)
VERSIONED = msgspec.structs.replace(SUBJECT, kind="versioned")


def rows(text: str) -> AuditRows:
    """`a=1` or `a=1@5-9`, a version from 5 to 9; `a=1@5` is a latest one."""
    found = []
    for word in text.split():
        pair, _, span = word.partition("@")
        key, _, value = pair.partition("=")
        begins, _, ends = span.partition("-")
        found.append((key.encode(), int(begins or 0), int(ends) if ends else None, value.encode()))
    keys, begin, end, values = map(list, zip(*found, strict=True)) if found else ([], [], [], [])
    return AuditRows(keys, begin, end, values)


def folded(text: str, later: str = "", gone: str = "") -> ReplayedLog:
    """What the log says up to the offset, after it, and which of the former it no longer has."""
    known = {
        (key, begins): AuditRow(value, ends)
        for key, begins, ends, value in zip(*rows(text), strict=True)
    }
    after = rows(later)
    places = frozenset(known) | frozenset((key.encode(), 0) for key in gone.split())
    later_places = zip(after.keys, after.begins, strict=True)
    return ReplayedLog(known, places, dict(zip(later_places, after.values, strict=True)))


def examined(stored: str, log: ReplayedLog, subject: Subject = SUBJECT) -> StoreAudit:
    one = StoreAudit(subject.store, subject.kind, subject.key_serde)
    one.examine(subject, [rows(stored)], log, PARTITIONERS)
    return one


# Stores without history.


@pytest.mark.parametrize(
    ("stored", "log", "later", "finding"),
    [
        ("a=1", "a=1", "", "equal"),
        ("a=1", "a=1", "a=2", "equal"),
        ("a=1", "a=2", "", "differs"),
        ("a=1", "", "", "extra"),
        ("", "a=1", "", "missing"),
        # Compaction may have removed the record the store has, as there is a later one.
        ("a=1", "", "a=2", "superseded"),
        ("a=1", "a=0", "a=2", "superseded"),
        ("", "a=1", "a=2", "superseded"),
        ("a=2", "", "a=2", "superseded"),
        # But a log that still has an earlier one shows that the store was given this too early.
        ("a=2", "a=1", "a=2", "pending"),
    ],
)
def test_a_row_is_judged_by_both_sides_and_by_what_comes_later(
    stored: str, log: str, later: str, finding: str
) -> None:
    one = examined(stored, folded(log, later))
    assert {found.value: count for found, count in one.findings.items()} == {finding: 1}


def test_a_failure_names_check_store_task_and_keys() -> None:
    one = examined("a=1 b=2 c=3 same=1", folded("a=1 b=3 d=4 e=5 same=1"))
    told = {failure.check: failure for failure in one.failures}
    assert told[AuditCheck.EQUAL_VALUES].keys == ["b"]
    assert told[AuditCheck.NONE_EXTRA].keys == ["c"]
    assert told[AuditCheck.NONE_MISSING].keys == ["d", "e"]
    assert told[AuditCheck.ROW_COUNTS].detail == "the store has -1 rows compared with its log"
    line = failure_line(told[AuditCheck.NONE_MISSING])
    assert line.startswith("no key missing: store 'counts' of task 0_0: ")
    assert line.endswith("(2: d, e)")
    result = one.result()
    assert (result.rows, result.rows_of_log, result.equal) == (4, 5, 2)


def test_of_many_keys_only_some_are_named() -> None:
    one = examined(" ".join(f"k{i}=1" for i in range(1000)), folded(""))
    (extra,) = [failure for failure in one.failures if failure.check is AuditCheck.NONE_EXTRA]
    assert (extra.count, len(extra.keys)) == (1000, 20)
    assert "1000: k0, k1" in failure_line(extra)
    assert failure_line(extra).endswith(", …)")


@pytest.mark.parametrize(
    ("offset", "end", "last", "check"),
    [
        (10, 10, None, None),
        (9, 10, 9, None),
        (11, 10, None, AuditCheck.STABLE_OFFSETS),
        (8, 10, 9, AuditCheck.FORWARD_OFFSETS),
    ],
)
def test_a_store_stands_within_its_log_and_not_before_where_it_stood(
    offset: int, end: int, last: int | None, check: AuditCheck | None
) -> None:
    subject = msgspec.structs.replace(SUBJECT, offset_next=offset, log_end=end, last_offset=last)
    one = examined("a=1", folded("a=1"), subject)
    assert [failure.check for failure in one.failures] == ([] if check is None else [check])


# Where keys lie.


def test_a_key_where_its_hash_does_not_put_it_is_named() -> None:
    keys = [f"k{i}" for i in range(200)]
    one = StoreAudit("counts", "keyvalue", "STRING")
    for partition in range(2):
        mine = [key for key in keys if murmur2_partition(key.encode(), 2) == partition]
        strange = next(key for key in keys if key not in mine)
        text = " ".join(f"{key}=1" for key in [*mine, strange])
        subject = msgspec.structs.replace(
            SUBJECT, partition=partition, partitions=2, stream_task=f"0_{partition}"
        )
        one.examine(subject, [rows(text)], folded(text), PARTITIONERS)
    assert one.result().placement == "murmur2"
    assert [(f.check, f.stream_task, f.count) for f in one.failures] == [
        (AuditCheck.RIGHT_PARTITION, "0_0", 1),
        (AuditCheck.RIGHT_PARTITION, "0_1", 1),
    ]


def test_rows_that_a_partitioner_places_are_not_judged_by_a_hash() -> None:
    keys = [f"k{i}" for i in range(200)]
    mine = [key for key in keys if murmur2_partition(key.encode(), 2) == 0]
    strange = next(key for key in keys if key not in mine)
    text = " ".join(f"{key}=1" for key in [*mine, strange])
    one = StoreAudit("counts", "keyvalue", "STRING", placed_apart=True)
    one.examine(
        msgspec.structs.replace(SUBJECT, partitions=2), [rows(text)], folded(text), PARTITIONERS
    )
    result = one.result()
    assert (result.placement, result.placement_text()) == (None, "its own partitioner")
    assert one.failures == []


# Which serde wrote a row.


def by_writers(names: dict[int, str], values: list[bytes], kind: str = "keyvalue") -> StoreAudit:
    subject = msgspec.structs.replace(SUBJECT, writers=names, kind=kind)
    one = StoreAudit(subject.store, subject.kind, subject.key_serde)
    keys: list[bytes | None] = [b"t" if kind == "window" else b"k"]
    keys += [b"k%d" % place for place in range(1, len(values))]
    rows = AuditRows(keys, [0] * len(values), [None] * len(values), values)
    for places in (range(1), range(1, len(values))):
        part = rows.taken(places)
        log = {
            (key, 0): AuditRow(value, None)
            for key, value in zip(part.keys, part.values, strict=True)
        }
        one.examine(subject, [part], ReplayedLog(log, frozenset(), {}), PARTITIONERS)
    return one


@pytest.mark.parametrize(
    ("names", "values", "told"),
    [
        ({}, [b"1", MARK + b"\x01v"], []),
        ({0: "JSON"}, [b"1", MARK + b"\x01v", b""], ["3 by JSON, generation 0"]),
        (
            {0: "INT64", 1: "JSON", 2: "MSGPACK"},
            [b"1", MARK + b"\x02v", MARK + b"\x01v", b"2", MARK + b"\x02"],
            [
                "2 by MSGPACK, generation 2",
                "1 by JSON, generation 1",
                "2 by INT64, generation 0",
            ],
        ),
        (
            {0: "CONFLUENT_AVRO(Order)"},
            [b"\0\0\0\0\7x", b"\0\0\0\1\0", b"\0\0\0\0\7y"],
            [
                "2 by CONFLUENT_AVRO(Order), generation 0, schema 7",
                "1 by CONFLUENT_AVRO(Order), generation 0, schema 256",
            ],
        ),
        (
            {0: "JSON", 1: "CONFLUENT_AVRO(Order)"},
            [b"\0\0\0\0\7x", MARK + b"\x01\0\0\0\0\7x"],
            [
                "1 by CONFLUENT_AVRO(Order), generation 1, schema 7",
                "1 by JSON, generation 0",
            ],
        ),
    ],
)
def test_rows_are_counted_by_the_serde_that_wrote_them(
    names: dict[int, str], values: list[bytes], told: list[str]
) -> None:
    one = by_writers(names, values)
    assert one.failures == []
    assert list(map(str, one.result().writers)) == told


@pytest.mark.parametrize(
    ("names", "row"),
    [
        ({1: "JSON"}, b"1"),
        ({0: "GONE", 1: "JSON"}, b"1"),
        ({1: "JSON"}, MARK + b"\x02v"),
        ({1: "JSON"}, MARK),
        ({0: "CONFLUENT_AVRO(Order)"}, b"{}"),
        ({0: "CONFLUENT_AVRO(Order)"}, b"\0\0\0\7"),
        ({0: "CONFLUENT_AVRO(Order)"}, b""),
    ],
)
def test_a_row_of_a_serde_that_is_not_recorded_is_a_failure(
    names: dict[int, str], row: bytes
) -> None:
    fine = b"\0\0\0\0\1" if 0 in names and len(names) == 1 else MARK + b"\x01v"
    one = by_writers(names, [fine, row, fine])
    (failure,) = one.failures
    assert (failure.check, failure.count, failure.keys) == (AuditCheck.KNOWN_WRITERS, 1, ["k1"])
    assert [each.rows for each in one.result().writers] == [2]


def test_the_stream_time_of_windows_is_no_value_of_a_serde() -> None:
    one = by_writers({1: "JSON"}, [b"\0" * 8, MARK + b"\x01v"], kind="window")
    assert one.failures == []
    assert [each.rows for each in one.result().writers] == [1]


@pytest.mark.parametrize(
    ("keys", "murmur2", "crc32", "hash_name"),
    [
        (1000, 0, 480, "murmur2"),
        (1000, 510, 3, "crc32"),
        (1000, 100, 500, "murmur2"),
        (1000, 101, 500, None),
        (20, 1, 9, None),
        (20, 0, 9, "murmur2"),
    ],
)
def test_keys_placed_some_other_way_are_not_judged(
    keys: int, murmur2: int, crc32: int, hash_name: str | None
) -> None:
    assert placing_hash(keys, {"murmur2": murmur2, "crc32": crc32}) == hash_name


# Stores with history.


@pytest.mark.parametrize(
    ("stored", "log", "later", "findings"),
    [
        ("a=1@150-160 a=2@160", "a=1@150-160 a=2@160", "", {"equal": 2}),
        ("a=1@150-155 a=2@160", "a=1@150-160 a=2@160", "", {"differs": 1, "equal": 1}),
        ("a=2@160", "a=1@150-160 a=2@160", "", {"missing": 1, "equal": 1}),
        # Each version has a key of its own, so a later one of the same key excuses nothing …
        ("a=1@50-60 a=2@60", "a=2@60", "a=9@70", {"extra": 1, "equal": 1}),
        # … and a later record of the same version does.
        ("a=1@50-60 a=2@60", "a=2@60", "a=1@50", {"superseded": 1, "equal": 1}),
        ("a=2@60", "a=1@60", "a=2@60", {"pending": 1}),
    ],
)
def test_a_version_is_judged_by_the_records_of_its_own(
    stored: str, log: str, later: str, findings: dict[str, int]
) -> None:
    one = examined(stored, folded(log, later), VERSIONED)
    assert {found.value: count for found, count in one.findings.items()} == findings


def test_versions_that_a_log_does_not_show_are_told_and_not_excused() -> None:
    subject = msgspec.structs.replace(VERSIONED, is_whole=False)
    one = examined("a=1@50-60 a=2@60", folded("a=2@60"), subject)
    assert {found.value: count for found, count in one.findings.items()} == {
        "unseen": 1,
        "equal": 1,
    }
    found = verdict_of([one.result()], one.failures, superseded_max_percent=100)
    assert found is AuditVerdict.NOT_ENOUGH_CHECKED


def test_a_version_that_ends_with_one_of_which_only_a_later_record_is_left_is_superseded() -> None:
    """Compaction took the first record of the version at 20, because it was written once more."""
    subject = msgspec.structs.replace(VERSIONED, offset_next=2, now_ms=30)
    rows = [(b"a", b"1", 10), (b"a", b"3", 30), (b"a", b"2", 20)]
    broker = MemoryBroker()
    broker.state.create(LOG.topic, 1, {})
    for key, value, time in rows:
        (record_key,), (logged_value,), *_ = versions([key], [version_row(value, time)])
        broker.produce(LOG, Record(record_key, logged_value, 1))
    one = examined("a=1@10-20 a=2@20-30 a=3@30", replay_log(broker.audit_log(), subject), subject)
    assert one.failures == []
    assert {found.value: count for found, count in one.findings.items()} == {
        "equal": 1,
        "superseded": 2,
    }


@pytest.mark.parametrize(
    ("stored", "check"),
    [
        ("a=1@1-5 a=2@5-9 a=3@9", None),
        ("a=1@1-5 a=2@6-9", None),
        ("a=1@1-7 a=2@5-9", AuditCheck.VERSIONS_APART),
        ("a=1@1 a=2@5-9", AuditCheck.VERSIONS_APART),
        ("a=1@1 a=2@5", AuditCheck.ONE_LATEST),
        ("a=1@1-5 a=2@1-9", AuditCheck.UNIQUE_KEYS),
    ],
)
def test_versions_of_a_key_follow_one_another(stored: str, check: AuditCheck | None) -> None:
    one = examined(stored, folded(stored), VERSIONED)
    found = {failure.check for failure in one.failures}
    assert (check in found) if check else not found


def test_a_key_is_the_latest_in_one_partition_only() -> None:
    one = examined("a=1@5", folded("a=1@5"), VERSIONED)
    other = msgspec.structs.replace(VERSIONED, partition=1, stream_task="0_1")
    one.examine(other, [rows("a=1@5")], folded("a=1@5"), {})
    assert [(f.check, f.stream_task) for f in one.failures] == [(AuditCheck.ONE_LATEST, "0_1")]


# Folding a log.


def logged(*records: tuple[str, str | None, int]) -> MemoryBroker:
    broker = MemoryBroker()
    broker.state.create(LOG.topic, 1, {})
    for key, value, time in records:
        data = None if value is None else value.encode()
        broker.produce(LOG, Record(key.encode(), data, time))
    return broker


def test_a_log_is_folded_up_to_the_offset_and_the_rest_is_told_apart() -> None:
    broker = logged(("a", "1", 0), ("b", "1", 0), ("a", "2", 0), ("b", None, 0), ("a", "3", 0))
    subject = msgspec.structs.replace(SUBJECT, offset_next=4)
    found = replay_log(broker.audit_log(), subject)
    assert found == ReplayedLog(
        {(b"a", 0): AuditRow(b"2", None)}, frozenset([(b"a", 0), (b"b", 0)]), {(b"a", 0): b"3"}
    )
    beyond = msgspec.structs.replace(SUBJECT, offset_next=99)
    assert replay_log(broker.audit_log(), beyond).rows == {(b"a", 0): AuditRow(b"3", None)}


def test_what_compaction_took_from_under_the_store_is_superseded() -> None:
    broker = logged(("a", "1", 0), ("b", "1", 0), ("a", "2", 0))
    subject = msgspec.structs.replace(SUBJECT, offset_next=2)
    broker.compact(LOG.topic)
    one = examined("a=1 b=1", replay_log(broker.audit_log(), subject), subject)
    assert {found.value: count for found, count in one.findings.items()} == {
        "equal": 1,
        "superseded": 1,
    }
    found = verdict_of([one.result()], one.failures, superseded_max_percent=1)
    assert found is AuditVerdict.NOT_ENOUGH_CHECKED
    assert verdict_of([one.result()], [], superseded_max_percent=50) is AuditVerdict.RIGHT


def test_versions_are_folded_by_their_times_without_what_has_expired() -> None:
    broker = logged(
        ("a", "1", 10),
        ("a", "3", 30),
        ("a", "2", 20),
        ("a", "two", 20),
        ("b", "1", 5),
        ("b", None, 15),
        ("a", None, 40),
        ("c", "1", 2),
    )
    subject = msgspec.structs.replace(VERSIONED, bound_ms=20)
    found = replay_log(broker.audit_log(), subject)
    assert found.rows == {
        (b"a", 20): AuditRow(b"two", 30),
        (b"a", 30): AuditRow(b"3", 40),
        (b"c", 2): AuditRow(b"1", None),
    }


@pytest.mark.parametrize("subject", [SUBJECT, VERSIONED], ids=["key-value", "versioned"])
def test_records_without_a_key_are_in_no_store_and_in_no_fold(subject: Subject) -> None:
    broker = logged(("a", "1", 11), ("b", "1", 12))
    broker.produce(LOG, Record(None, b"nobody's", 3))
    broker.produce(LOG, Record(b"a", b"2", 4))
    broker.produce(LOG, Record(None, b"nobody's", 5))
    found = replay_log(broker.audit_log(), msgspec.structs.replace(subject, offset_next=4))
    assert {key for key, _ in found.rows} == {b"a", b"b"}
    assert None not in {key for key, _ in found.later}


# The verdict.

RIGHT = AuditedStore("counts", "keyvalue", 100, 100, 99, 1)


@pytest.mark.parametrize(
    ("stores", "verdict"),
    [
        ([], AuditVerdict.NOTHING_CHECKED),
        ([AuditedStore("counts", "keyvalue", 0, 0, 0, 0)], AuditVerdict.NOTHING_CHECKED),
        ([RIGHT], AuditVerdict.RIGHT),
        ([RIGHT, AuditedStore("empty", "keyvalue", 0, 0, 0, 0)], AuditVerdict.RIGHT),
        ([RIGHT, AuditedStore("busy", "keyvalue", 98, 98, 98, 2)], AuditVerdict.NOT_ENOUGH_CHECKED),
        ([AuditedStore("busy", "keyvalue", 0, 0, 0, 2)], AuditVerdict.NOT_ENOUGH_CHECKED),
    ],
)
def test_only_what_was_compared_is_a_pass(
    stores: list[AuditedStore], verdict: AuditVerdict
) -> None:
    assert verdict_of(stores, [], superseded_max_percent=1) is verdict


def test_one_failure_outweighs_all_else() -> None:
    failure = AuditFailure(AuditCheck.NONE_EXTRA, "counts", "0_0", 1, ["a"], "more")
    assert verdict_of([], [failure], superseded_max_percent=1) is AuditVerdict.WRONG


def test_no_pass_is_an_error_with_what_was_found_and_the_way_out() -> None:
    failure = AuditFailure(AuditCheck.NONE_EXTRA, "counts", "0_0", 1, ["a"], "more")

    def record(verdict: AuditVerdict) -> AuditRecord:
        return AuditRecord(
            application_id="shop",
            time_ms=1,
            verdict=verdict,
            failures=[failure],
            stores=[AuditedStore("busy", "keyvalue", 98, 98, 98, 2)],
            not_checked={"recent": "it is in memory"},
            link="file:///docs/index.html",
        )

    assert require_pass(record(AuditVerdict.RIGHT)).passed
    with pytest.raises(AuditFailed, match=r"store 'counts' of task 0_0: more \(1: a\); report: f"):
        require_pass(record(AuditVerdict.WRONG))
    with pytest.raises(NotChecked, match=r"busy: 2 of 100\): audit again"):
        require_pass(record(AuditVerdict.NOT_ENOUGH_CHECKED))
    with pytest.raises(NotChecked, match=r"nothing of shop was compared.*recent: it is in memory"):
        require_pass(record(AuditVerdict.NOTHING_CHECKED))
