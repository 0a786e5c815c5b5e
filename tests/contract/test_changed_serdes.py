"""Whether a start goes on with a store whose serdes, schemas or migrations changed."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, TopologyMismatch
from statestore.model.ids import TopicPartition
from statestore.model.records import Record
from statestore.operations.deployed import read_deployed
from statestore.operations.relocation.apply import RelocationReport
from statestore.operations.running.run import Run, RunRequest
from statestore.operations.shipping import packed, unpacked
from tests.contract.task_rig import APPLICATION, TaskRig


class V1(msgspec.Struct):
    """What the store began with."""

    total: int


class V2(msgspec.Struct):
    """A field more, with a default."""

    total: int
    count: int = 0


class V2Required(msgspec.Struct):
    """A field more, which old rows do not have."""

    total: int
    count: int


class Without(msgspec.Struct):
    """Nothing is left of it."""


class V3(msgspec.Struct):
    """It reads what `Without` wrote, and not what V1 did."""

    total: str = ""


def typed(kind: Any, name: str = "JSON(Total)") -> ss.Serde[Any]:
    return ss.Serde(
        name,
        msgspec.json.encode,
        lambda data: msgspec.json.decode(data, type=kind),
        schema=ss.Schema("JSON", json.dumps(msgspec.json.schema(kind), sort_keys=True)),
    )


def resolving(*fields: tuple[str, str, Any]) -> ss.Serde[Any]:
    """A serde whose rows do not say which schema wrote them, as plain Avro."""
    listed = [dict(zip(("name", "type", "default"), one, strict=True)) for one in fields]
    schema = {"type": "record", "name": "Total", "fields": listed}
    return ss.Serde(
        "AVRO(Total)",
        msgspec.json.encode,
        msgspec.json.decode,
        schema=ss.Schema("AVRO", json.dumps(schema, sort_keys=True)),
        resolve=lambda _writer: msgspec.json.decode,
    )


def migrated(value: ss.Serde[Any], *steps: ss.Migration[Any]) -> ss.Topology:
    return pipeline(value, steps=steps)


def pipeline(
    value: ss.Serde[Any],
    key: ss.Serde[Any] = serdes.STRING,
    steps: tuple[ss.Migration[Any], ...] = (),
) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=key)
    kept = ss.Materialized("kept", value_serde=value, migrate=steps or None)
    builder.stream("in").group_by_key().aggregate(lambda: None, lambda k, v, a: v, kept)
    return builder.build()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TaskRig]:
    made = TaskRig(pipeline(typed(V1)), tmp_path)
    yield made
    made.end()


def deployed(rig: TaskRig, topology: ss.Topology, *, accept: bool = False) -> RelocationReport:
    """A start with this pipeline; returns what `topology check` would have said."""
    rig.topology = topology
    request = RunRequest(accept_new_serdes=accept)
    found = Run(rig.runtime, topology, request).check()
    with Run(rig.runtime, topology, request):
        pass
    return found.relocation


def with_rows(rig: TaskRig, topology: ss.Topology) -> None:
    """A store that has run and whose changelog has a row."""
    deployed(rig, topology)
    task = rig.start()
    rig.send("in", [("dropped", None)])
    task.step(0)
    task.step_commit()
    rig.end()
    log = TopicPartition(f"{APPLICATION}-kept-changelog", 0)
    rig.broker.produce(log, Record(b"key", b"value", 0))


def refused(rig: TaskRig, topology: ss.Topology, message: str, *, accept: bool = False) -> None:
    """Both the check and the start refuse it, and nothing is written."""
    before = rig.layout.topology_file.read_bytes()
    run = Run(rig.runtime, topology, RunRequest(accept_new_serdes=accept))
    with pytest.raises(TopologyMismatch, match=message):
        run.check()
    with pytest.raises(TopologyMismatch, match=message), run:
        pass
    assert rig.layout.topology_file.read_bytes() == before


def test_a_schema_that_reads_all_rows_is_told_of_and_taken(rig: TaskRig) -> None:
    with_rows(rig, pipeline(typed(V1)))
    told = deployed(rig, pipeline(typed(V2))).serdes
    assert told == ["store kept: the schema of its values, JSON(Total), changed and reads all rows"]
    assert deployed(rig, pipeline(typed(V2))).serdes == []
    assert deployed(rig, pipeline(typed(V1))).serdes == []
    assert len(read_deployed(rig.layout).stores["kept"].value_writers) == 2


def test_a_schema_that_does_not_read_old_rows_is_refused_with_the_reason(rig: TaskRig) -> None:
    with_rows(rig, pipeline(typed(V1)))
    reason = (
        "store kept: the schema of its values, JSON.Total., changed: the field 'count' of the "
        "value is required and may be missing.*migrate=ss.Migration.*--accept-new-serdes"
    )
    refused(rig, pipeline(typed(V2Required)), reason)
    deployed(rig, pipeline(typed(V2Required)), accept=True)
    assert len(read_deployed(rig.layout).stores["kept"].value_writers) == 1
    assert deployed(rig, pipeline(typed(V2Required))).serdes == []


def test_a_schema_has_to_read_all_that_ever_wrote_rows_not_only_the_last(rig: TaskRig) -> None:
    with_rows(rig, pipeline(typed(V1)))
    deployed(rig, pipeline(typed(Without)))
    refused(rig, pipeline(typed(V3)), "'total' is string and was integer")


def test_a_store_that_never_had_rows_takes_any_schema(rig: TaskRig) -> None:
    deployed(rig, pipeline(typed(V1)))
    deployed(rig, pipeline(typed(V2Required)))
    deployed(rig, pipeline(serdes.STRING))
    deployed(rig, pipeline(typed(V1)))
    deployed(rig, pipeline(typed(V2)))
    assert len(read_deployed(rig.layout).stores["kept"].value_writers) == 1


def test_plain_json_reads_what_a_typed_serde_wrote_and_not_the_other_way_round(
    rig: TaskRig,
) -> None:
    with_rows(rig, pipeline(typed(V1)))
    (told,) = deployed(rig, pipeline(serdes.JSON)).serdes
    assert told == "store kept: its values, written as JSON(Total), are read as JSON"
    refused(rig, pipeline(typed(V2)), "written as JSON and would be read as JSON.Total")


def test_a_class_may_be_renamed(rig: TaskRig) -> None:
    with_rows(rig, pipeline(typed(V1)))
    (told,) = deployed(rig, pipeline(typed(V1, "JSON(Renamed)"))).serdes
    assert "written as JSON(Total), are read as JSON(Renamed)" in told


def test_another_framing_of_the_same_schema_is_refused(rig: TaskRig) -> None:
    with_rows(rig, pipeline(typed(V1)))
    refused(rig, pipeline(typed(V1, "REGISTRY_JSON(Total)")), "written as JSON.Total. and would be")


def test_keys_with_another_schema_are_refused_even_if_it_reads_them(rig: TaskRig) -> None:
    with_rows(rig, pipeline(serdes.JSON, typed(V1)))
    message = "the schema of its keys, JSON.Total., changed, so that equal keys"
    refused(rig, pipeline(serdes.JSON, typed(V2)), message)
    deployed(rig, pipeline(serdes.JSON, typed(V2)), accept=True)


def test_rows_that_do_not_say_their_schema_need_a_migration(rig: TaskRig) -> None:
    one, two = resolving(("a", "int", 0)), resolving(("a", "int", 0), ("b", "int", 0))
    with_rows(rig, pipeline(one))
    refused(rig, pipeline(two), "do not say with which schema they were written.*ss.Migration")
    (told,) = deployed(rig, migrated(two, ss.Migration(one))).serdes
    assert told == (
        "store kept: migration 1 to AVRO(Total) begins: older rows are converted when they are read"
    )


def test_a_migration_without_a_function_has_to_be_one_of_schemas_that_resolve(
    rig: TaskRig,
) -> None:
    one, two = resolving(("a", "int", 0)), resolving(("a", "string", ""))
    with_rows(rig, pipeline(one))
    message = "migration from AVRO.Total. to AVRO.Total. has no function, and the field 'a'"
    refused(rig, migrated(two, ss.Migration(one)), message)
    deployed(rig, migrated(two, ss.Migration(one, lambda value: value)))


STEP1 = ss.Migration(typed(V1), lambda old: V2(old.total))
STEP2 = ss.Migration(typed(V2), lambda old: V3(str(old.total)))


def test_migrations_are_appended_and_never_left_out(rig: TaskRig) -> None:
    with_rows(rig, pipeline(typed(V1)))
    deployed(rig, migrated(typed(V2), STEP1))
    deployed(rig, migrated(typed(V3), STEP1, STEP2))
    gone = "2 migrations wrote its rows, and the pipeline names 1 of them: bring back all"
    refused(rig, migrated(typed(V3), STEP2), gone)
    refused(rig, pipeline(typed(V3)), "the pipeline names 0 of them", accept=True)
    other = ss.Migration(typed(V3), lambda old: V2(int(old.total)))
    refused(rig, migrated(typed(V3), other, STEP2), "'total' is string and was integer")


def test_the_first_migration_names_the_serde_of_rows_without_a_mark(rig: TaskRig) -> None:
    with_rows(rig, pipeline(typed(V1)))
    refused(
        rig,
        migrated(typed(V2), ss.Migration(serdes.STRING, V2)),
        "written as JSON.Total. and would be read as STRING: name the serde that wrote them as the "
        "first migration",
    )


def test_within_a_generation_a_schema_may_change_so_that_it_reads_all_rows(rig: TaskRig) -> None:
    with_rows(rig, pipeline(serdes.STRING))
    first = ss.Migration(serdes.STRING, lambda text: V1(int(text)))
    deployed(rig, migrated(typed(V1), first))
    deployed(rig, migrated(typed(V2), first))
    refused(rig, migrated(typed(V2Required), first), "'count' of the value is required")


NO_MIGRATION: Any = int
NO_FUNCTION: Any = 5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: ss.Migration(NO_MIGRATION, int),
            "takes the serde that wrote the rows first, not type",
        ),
        (lambda: ss.Migration(serdes.JSON, NO_FUNCTION), "5 cannot be called"),
        (
            lambda: ss.Materialized(
                "s", key_serde=serdes.STRING, value_serde=serdes.JSON, migrate=NO_MIGRATION
            ),
            "migrate takes a Migration or a list of them",
        ),
        (
            lambda: ss.StreamsBuilder(
                value_serde=ss.persistent_key_value_store(
                    "s",
                    key_serde=serdes.STRING,
                    value_serde=serdes.JSON,
                    migrate=ss.Migration(serdes.STRING),
                ).value_serde
            ).stream("in"),
            "pass the serde itself, because a topic has no such rows",
        ),
    ],
)
def test_what_is_no_migration_is_refused(make: Any, message: str) -> None:
    with pytest.raises(Misuse, match=message):
        make()


def test_a_count_migrates_nothing() -> None:
    builder = ss.StreamsBuilder()
    kept: Any = ss.Materialized("counts", migrate=ss.Migration(serdes.JSON, int))
    with pytest.raises(InvalidTopology, match="migrates nothing"):
        builder.stream("in").group_by_key().count(kept)


def test_a_row_that_the_pipeline_cannot_know_is_an_error() -> None:
    value: ss.Serde[Any] = ss.persistent_key_value_store(
        "s",
        key_serde=serdes.STRING,
        value_serde=serdes.JSON,
        migrate=ss.Migration(serdes.STRING, lambda _: None),
    ).value_serde
    newer = value.serialize(1)[:-2] + b"\x07" + b"1"
    with pytest.raises(ValueError, match=r"generation 7.*a newer pipeline wrote it"):
        value.deserialize(newer)
    with pytest.raises(ValueError, match="no number of its generation"):
        value.deserialize(newer[:-2])
    with pytest.raises(ValueError, match="a row cannot vanish"):
        value.deserialize(b"old")


def test_a_store_with_migrations_travels_to_workers() -> None:
    value: ss.Serde[Any] = serdes.json(V2)
    topology = migrated(value, ss.Migration(serdes.JSON, lambda old: V2(old["total"])))
    there = unpacked(packed(topology))
    assert there.fingerprint() == topology.fingerprint()
    found: ss.Serde[Any] = there.stores["kept"].value_serde
    assert found.deserialize(b'{"total":3}') == V2(3)
    assert found.deserialize(found.serialize(V2(3, 4))) == V2(3, 4)


def avro(*fields: tuple[Any, ...]) -> ss.Serde[Any]:
    listed = [dict(zip(("name", "type", "default"), one, strict=False)) for one in fields]
    return serdes.avro({"type": "record", "name": "shop.Total", "fields": listed})


def test_rows_of_plain_avro_are_read_by_the_schemas_that_wrote_them(rig: TaskRig) -> None:
    one, two = avro(("total", "int")), avro(("total", "long"), ("count", "int", 7))
    three = avro(("sum", "string"))
    with_rows(rig, pipeline(one))
    refused(rig, pipeline(two), "do not say with which schema they were written")
    deployed(rig, migrated(two, ss.Migration(one)))
    second = ss.Migration(two, lambda old: {"sum": f"{old['total']} of {old['count']}"})
    deployed(rig, migrated(three, ss.Migration(one), second))
    in_two = migrated(two, ss.Migration(one)).stores["kept"].value_serde
    in_three = migrated(three, ss.Migration(one), second).stores["kept"].value_serde
    first: ss.Serde[Any] = in_two
    last: ss.Serde[Any] = in_three
    row = one.serialize({"total": 3})
    assert first.deserialize(row) == {"total": 3, "count": 7}
    assert last.deserialize(row) == {"sum": "3 of 7"}
    assert last.deserialize(first.serialize({"total": 4, "count": 1})) == {"sum": "4 of 1"}
    assert last.deserialize(last.serialize({"sum": "5"})) == {"sum": "5"}


def test_three_schemas_of_plain_avro_need_no_function(rig: TaskRig) -> None:
    one, two = avro(("a", "int")), avro(("a", "int"), ("b", "int", 1))
    three = avro(("b", "int", 9), ("c", "string", "new"))
    steps = (ss.Migration(one), ss.Migration(two))
    with_rows(rig, pipeline(one))
    deployed(rig, migrated(three, *steps))
    value: ss.Serde[Any] = migrated(three, *steps).stores["kept"].value_serde
    assert value.deserialize(one.serialize({"a": 5})) == {"b": 9, "c": "new"}
    before: ss.Serde[Any] = migrated(two, steps[0]).stores["kept"].value_serde
    written = before.serialize({"a": 5, "b": 6})
    assert value.deserialize(written) == {"b": 6, "c": "new"}


def suppressing(value: ss.Serde[Any], steps: ss.Migration[Any] | None = None) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=value)
    totals = builder.stream("in").to_table(ss.Materialized("kept", migrate=steps))
    late = ss.Suppressed.until_time_limit(1000)
    totals.suppress(late, name="late").to_stream().to("out")
    return builder.build()


def joining_late(value: ss.Serde[Any], steps: ss.Migration[Any] | None = None) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=value)
    kept = ss.Materialized("kept", history_retention=10_000, migrate=steps)
    rows = builder.stream("rows").to_table(kept)
    builder.stream("in").join(rows, lambda one, _row: one, grace=1000, name="late").to("out")
    return builder.build()


def with_what_waits(topology: ss.Topology, folder: Path) -> TaskRig:
    """An application that was deployed and has one record that waits."""
    rig = TaskRig(topology, folder)
    deployed(rig, rig.topology)
    task = rig.start()
    rig.send("in", [("a", '{"total":1}')])
    task.step(0)
    task.step_commit()
    rig.end()
    return rig


@pytest.mark.parametrize(
    ("made", "store"), [(suppressing, "late-store"), (joining_late, "late-buffer")]
)
def test_what_waits_is_read_by_no_serde_that_did_not_write_it(
    made: Any, store: str, tmp_path: Path
) -> None:
    wider = ss.Migration(typed(V1), lambda old: V2Required(old.total, 1))
    rig = with_what_waits(made(typed(V1)), tmp_path)
    reason = (
        f"store {store}: the schema of its values, WAITING-JSON.Total., changed: the field 'count' "
        "of the value is required.*nothing waits there any more .`held_records` is 0.*"
        "another name.*--accept-new-serdes"
    )
    refused(rig, made(typed(V2Required), wider), reason)
    own = ss.Serde("OWN", lambda total: b"%d" % total, int)
    changed = ss.Migration(typed(V1), lambda old: old.total)
    refused(
        rig, made(own, changed), f"store {store}.*WAITING-JSON.Total. and would be.*WAITING-OWN"
    )
    told = deployed(rig, made(typed(V2))).serdes
    assert f"store {store}: the schema of its values, WAITING-JSON(Total), changed and reads" in (
        str(told)
    )


def test_a_store_of_a_version_that_did_not_tell_what_waits_goes_on(tmp_path: Path) -> None:
    rig = with_what_waits(suppressing(typed(V1)), tmp_path)
    document = rig.layout.topology_file
    before = document.read_text()
    document.write_text(before.replace("WAITING-JSON(Total)", "BYTES"))
    assert before != document.read_text()
    deployed(rig, suppressing(typed(V1)))
    told = ss.Migration(typed(V1), str)
    refused(rig, suppressing(serdes.STRING, told), "WAITING-STRING")


def test_what_waits_in_bytes_that_do_not_say_their_schema_stays_with_it(tmp_path: Path) -> None:
    one, other = ("total", "int", 0), ("count", "int", 0)
    rig = with_what_waits(suppressing(resolving(one)), tmp_path)
    refused(
        rig,
        suppressing(resolving(one, other), ss.Migration(resolving(one))),
        "store late-store.*do not say with which schema they were written",
    )
