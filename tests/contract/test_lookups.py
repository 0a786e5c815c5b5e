"""Lookups over RocksDB, a broker in memory and files: what a wave sees, and what ends a run.

Shows I38.
"""

import hashlib
import io
import json
import os
from decimal import Decimal
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from rich.console import Console

import statestore as ss
from statestore import faults, serdes
from statestore.cli import cli
from statestore.commands.status import rendered
from statestore.errors import Misuse, StateStoreError, Unavailable
from statestore.faults import CrashPoint
from statestore.layout.files import read_whole
from statestore.operations.reset import ResetTo, reset
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import (
    FOREVER,
    check_run,
    run_request,
    serve_here,
    serve_planned,
    start_run,
)
from statestore.operations.start import lookup_files
from statestore.operations.start.global_stores import GlobalTables
from statestore.operations.status.status import read_status
from statestore.targets import FsspecTarget
from statestore.testing import TopologyTestDriver
from tests.builders import eventually
from tests.contract.test_global_tables import INPUT, OUT, Killed, World

RATES = "code,rate\na,1\nb,2\n"


def joined(url: Path | str, **options: Any) -> ss.Topology:
    """A stream of codes, joined with the rows of a file."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    options = {"key": "code", "store": "rates", **options}
    rates = b.lookup(str(url), **options)
    b.stream(INPUT).left_join(rates, lambda v, row: [v, row], key=lambda _k, v: v).to(OUT)
    return b.build()


def row(code: str, rate: object) -> list[Any]:
    return [code, {"code": code, "rate": rate}]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "rates.csv"
    file.write_text(RATES)
    return file


@pytest.fixture
def world(file: Path, tmp_path: Path) -> World:
    return World(tmp_path / "state", topology=joined(file))


# What a wave sees.


def test_every_task_has_the_rows_of_the_file(world: World, file: Path) -> None:
    world.send("a", "b", "c")
    summary = world.run()
    assert world.out() == [row("a", "1"), row("b", "2"), ["c", None]]
    [told] = summary.lookups
    assert told.pop("tag")
    assert told == {
        "store": "rates",
        "file": str(file),
        "sha256": hashlib.sha256(RATES.encode()).hexdigest(),
        "rows": 2,
    }


def test_a_changed_file_is_seen_from_the_next_run_on(world: World, file: Path) -> None:
    world.send("a", "b")
    first = world.run().lookups
    file.write_text("code,rate\na,7\nc,3\n")
    world.send("a", "b", "c")
    second = world.run().lookups
    assert first[0]["sha256"] != second[0]["sha256"]
    assert world.out() == [row("a", "1"), row("a", "7"), ["b", None], row("b", "2"), row("c", "3")]


def test_an_unchanged_file_keeps_its_version(world: World, file: Path) -> None:
    for _ in range(2):
        world.send("a")
        world.run()
        os.utime(file)
    assert world.versions.numbers() == [1]
    assert world.out() == [row("a", "1"), row("a", "1")]


def test_a_wave_sees_the_file_as_it_was_when_the_wave_was_planned(world: World, file: Path) -> None:
    """So a repeated attempt sees it, too, even if the file is gone."""
    world.send("a")
    with (
        world.runtime() as runtime,
        start_run(runtime, world.topology, RunRequest()) as started,
    ):
        planned = next(started.waves())
        file.write_text("code,rate\na,7\n")
        assert GlobalTables(runtime, world.topology, "another").refresh() == 2
        file.unlink()
        request, stop = RunRequest(), Event()
        serve_planned(runtime, world.topology, planned, request, slots=1, stop=stop)
    assert world.out() == [row("a", "1")]


def test_a_continuous_run_shows_a_changed_file_and_passes_over_a_bad_one(
    world: World, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.refresh_ms = 20
    stop, request, is_asked = Event(), run_request(run_for=FOREVER), False

    def shown(wanted: list[Any]) -> bool:
        """Send one record after the other, so that a slow run has no more than one to do."""
        nonlocal is_asked
        world.clock.advance(1000)
        found = world.out()
        if found or not is_asked:
            is_asked = True
            world.send("a")
        return wanted in found

    with world.runtime() as runtime, start_run(runtime, world.topology, request) as started:
        thread = Thread(target=serve_here, args=(started, stop))
        thread.start()
        try:
            eventually(lambda: shown(row("a", "1")), "the first row")
            file.write_text("code,rate\na,8\na,9\n")
            eventually(lambda: "has the key 'a' again" in caplog.text, "a warning")
            eventually(lambda: shown(row("a", "1")), "the row as it was")
            beside = file.with_suffix(".new")
            beside.write_text("code,rate\na,5\n")
            beside.rename(file)
            eventually(lambda: shown(row("a", "5")), "the newer row")
        finally:
            stop.set()
            thread.join()
    assert "as they were, and tried again" in caplog.text


@pytest.mark.parametrize("point", [CrashPoint.GLOBAL_ROWS_WRITTEN, CrashPoint.GLOBAL_PUBLISHED])
def test_a_death_in_the_refresh_costs_nothing_but_the_refresh(
    world: World, file: Path, point: CrashPoint
) -> None:
    world.send("a")
    world.run()
    file.write_text("code,rate\na,7\n")
    world.send("a")

    def die(reached: CrashPoint) -> None:
        if reached is point:
            raise Killed

    faults.on_reach(die)
    try:
        with pytest.raises(Killed):
            world.run()
    finally:
        faults.on_reach(None)
    world.run()
    assert world.out() == [row("a", "1"), row("a", "7")]
    assert not list(world.versions.unfinished())


def test_a_damaged_version_is_made_anew_from_the_file(world: World) -> None:
    world.send("a")
    world.run()
    (world.versions.path(1) / ".version.json").write_bytes(b"{")
    world.send("b")
    world.run()
    assert world.versions.numbers() == [1, 2]
    world.versions.mark_damaged(2)
    world.send("b")
    world.run()
    assert world.out() == [row("a", "1"), row("b", "2"), row("b", "2")]
    assert world.versions.numbers() == [2, 3]


def test_another_key_another_file_and_a_topic_in_its_place_make_the_store_anew(
    world: World, file: Path
) -> None:
    world.send("a")
    world.run()
    world.send("2")
    world.run(joined(file, key="rate"))
    other = file.with_name("other.csv")
    other.write_text("code,rate\na,9\n")
    world.send("a")
    world.run(joined(other))
    world.rate("a", 4)
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.global_table("rates", materialized="rates")
    b.stream(INPUT).left_join(rates, lambda v, row: [v, row], key=lambda _k, v: v).to(OUT)
    world.send("a")
    world.run(b.build())
    world.send("a")
    world.run(joined(other))
    wanted = [row("a", "1"), ["2", {"code": "b", "rate": "2"}], row("a", "9"), ["a", 4]]
    assert world.out() == sorted([*wanted, row("a", "9")], key=str)


# Formats.


def written(kind: str, rows: list[dict[str, Any]]) -> bytes:
    if kind == "jsonl":
        return "".join(json.dumps(one) + "\n" for one in rows).encode()
    into = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), into)
    return into.getvalue()


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_of_json_lines_and_parquet_keep_their_types(
    world: World, tmp_path: Path, kind: str
) -> None:
    rows = [
        {"code": "a", "rate": 1.5, "names": ["x", "ü"], "none": None},
        {"code": "b", "rate": 2.0, "names": [], "none": None},
    ]
    (tmp_path / f"rates.{kind}").write_bytes(written(kind, rows))
    world.send("a", "b")
    world.run(joined(tmp_path / f"rates.{kind}"))
    assert world.out() == [["a", rows[0]], ["b", rows[1]]]


class Rate(msgspec.Struct):
    code: int
    rate: Decimal


def test_a_typed_serde_reads_rows_and_another_key_serde_their_keys(
    world: World, tmp_path: Path
) -> None:
    file = tmp_path / "rates.parquet"
    file.write_bytes(written("parquet", [{"code": 7, "rate": Decimal("1.25")}]))
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    rates = b.lookup(str(file), key="code", key_serde=serdes.INT64, value_serde=serdes.json(Rate))
    b.stream(INPUT).join(rates, lambda _v, rate: str(rate.rate * 2), key=lambda _k, v: int(v)).to(
        OUT
    )
    world.send("7", "8")
    world.run(b.build())
    assert world.out() == ["2.50"]


def test_csv_may_have_a_byte_order_mark_quotes_and_empty_lines(world: World, file: Path) -> None:
    file.write_bytes('\ufeffcode,rate\r\n"a","1,\n5"\r\n\r\nb,\r\n'.encode())
    world.send("a", "b")
    world.run()
    assert world.out() == [row("a", "1,\n5"), row("b", "")]


def test_a_url_of_fsspec_and_a_format_by_name(world: World) -> None:
    url = "memory://lookups/rates.txt"
    FsspecTarget("memory://lookups").write("rates.txt", RATES.encode())
    world.send("a")
    world.run(joined(url, file_format="csv"))
    assert world.out() == [row("a", "1")]


# What ends a run before it has written anything.


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("code,rate\na,1\nb,2\na,3\n", "line 4 of .* has the key 'a' again, which line 2 has"),
        ("kode,rate\n", "the header of .* has no 'code', which is the key: it has 'kode', 'rate'"),
        ("code,rate\n,1\n", "line 2 of .* has no value for its key 'code'"),
        ("code,rate\na\n", "line 2 has 1 values, and the header 2"),
        ("code,code\na,b\n", "its header has 'code' twice"),
        ("", "it has no header"),
        (b"code\n\xff\n", "is not a csv that can be read"),
        ('code,rate\n"a,1\n', "is not a csv that can be read"),
    ],
)
def test_a_bad_file_is_a_refusal(world: World, file: Path, content: Any, told: str) -> None:
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(Misuse, match=told):
        world.run()
    assert not (world.state_dir / "app").exists()


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.jsonl", b'{"code": "a"}\n[1]\n', "line 2 is not a JSON object"),
        ("x.jsonl", b'{"code": "a"\n', "line 1: "),
        ("x.jsonl", b'\n{"kode": 1}\n', "line 2 of .* has no 'code', which is the key"),
        ("x.jsonl", b'{"code": null}\n', "has no value for its key"),
        ("x.jsonl", b'{"code": 5}\n', "its key 5 is int, but key_serde is STRING"),
        ("x.parquet", b"code\na\n", "is not a parquet that can be read"),
    ],
)
def test_so_is_one_in_another_format(
    world: World, tmp_path: Path, name: str, content: bytes, told: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(Misuse, match=told):
        world.run(joined(tmp_path / name))


def test_a_value_that_its_serde_does_not_read_is_named(world: World, file: Path) -> None:
    with pytest.raises(
        Misuse, match=r"line 2 of .* is not a valid .*Rate.*reads rows as JSON objects"
    ):
        world.run(joined(file, value_serde=serdes.json(Rate)))


def test_a_missing_file_a_folder_and_a_large_file_are_refusals(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Misuse, match="there is no file"):
        world.run(joined(file.with_name("none.csv")))
    with pytest.raises(Misuse, match="there is no file"):
        world.run(joined(file.parent, file_format="csv"))
    with pytest.raises(Misuse, match="cannot be used as the file of a lookup"):
        world.run(joined("nothing://x/a.csv"))
    monkeypatch.setattr(lookup_files, "BYTES_MAX", 5)
    with pytest.raises(Misuse, match=r"more than the 5 that a lookup may have.*global_table"):
        world.run()


def test_a_file_that_changes_while_it_is_read_is_not_taken(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FsspecTarget(str(file), "the file of a lookup")

    def with_a_writer_in_between(path: str, bytes_max: int) -> bytes:
        data = read_whole(path, bytes_max)
        with file.open("a") as out:
            out.write("c,3\n")
        return data

    monkeypatch.setattr("statestore.targets.read_whole", with_a_writer_in_between)
    with pytest.raises(Unavailable, match="changed while it was read"):
        target.read_root(1000)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"url": ""}, "takes the path or URL of a file"),
        ({"url": "a.csv", "key": ""}, "pass the name of the column"),
        ({"url": "a.txt"}, "the name ends with none of"),
        ({"url": "a.csv", "file_format": "xml"}, "it is one of csv, jsonl, parquet"),
        ({"url": "https://host/a.csv?sig=secret"}, "password or a query"),
        ({"url": "s3://me:secret@bucket/a.csv"}, "password or a query"),
    ],
)
def test_a_lookup_that_cannot_be_is_refused_when_it_is_written(
    words: dict[str, str], told: str
) -> None:
    with pytest.raises(Misuse, match=told) as refused:
        joined(**words)
    assert "secret" not in str(refused.value)


def test_its_store_has_a_name_of_its_own(file: Path) -> None:
    b = ss.StreamsBuilder()
    b.lookup(str(file), key="code", store="rates")
    with pytest.raises(Misuse, match="have a store named 'rates'"):
        b.global_table("other", materialized="rates")
    b.stream(INPUT).group_by_key().count(materialized="rates")
    with pytest.raises(Misuse, match="a lookup and an operator have a store named 'rates'"):
        b.build()


# What is seen of it.


def test_description_and_fingerprint_have_the_file(file: Path) -> None:
    topology = joined(file)
    assert f"(file: [{file}], key: [code])" in topology.describe()
    prints = {
        one.fingerprint()
        for one in (
            topology,
            joined(file, key="rate"),
            joined(file, file_format="jsonl"),
            joined(f"{file}.csv"),
        )
    }
    assert len(prints) == 4


def test_commands_show_the_rows(world: World, file: Path) -> None:
    state = ["--application-id", "app", "--state-dir", str(world.state_dir)]

    def told(*words: str) -> str:
        done = CliRunner().invoke(cli, [*words, *state])
        assert done.exit_code == 0, done.output
        return done.output

    with world.runtime() as runtime:
        assert check_run(runtime, world.topology, RunRequest()).lookups == {"rates": 2}
    world.run()
    assert '"store":"rates","stream_task":null' in told("stores", "ls", "--json").replace(" ", "")
    assert json.loads(told("stores", "get", "rates", "a")) == {"code": "a", "rate": "1"}
    assert told("stores", "count", "rates") == "2\n"
    with world.runtime() as runtime:
        status = read_status(runtime)
        [table] = status.global_tables
        assert (table.store, table.topic, table.file) == ("rates", None, str(file))
        assert table.refreshed_age_seconds is not None
        shown = Console(width=200, record=True, file=io.StringIO())
        shown.print(rendered(status))
        assert f"file {file}" in shown.export_text()
        reset(runtime, ResetTo(earliest=True))
    assert not world.versions.folder.exists()


def test_the_driver_reads_the_file_before_each_step(file: Path) -> None:
    with TopologyTestDriver(joined(file)) as driver:
        driver.pipe(INPUT, "k", "a")
        file.write_text("code,rate\na,5\n")
        driver.pipe(INPUT, "k", "a")
        driver.pipe(INPUT, "k", "b")
        found = [record.value for record in driver.read(OUT)]
        assert driver.store("rates").get("a") == {"code": "a", "rate": "5"}
        with pytest.raises(Misuse, match="read-only"):
            driver.store("rates").put("a", {})
        file.write_text("code,rate\na,5\na,6\n")
        with pytest.raises(StateStoreError, match="again"):
            driver.pipe(INPUT, "k", "a")
    assert found == [row("a", "1"), row("a", "5"), ["b", None]]
