"""Persistent stores on disk: what a new opening finds, formats, locks, and what the files hold."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from rocksdict import Options, Rdict, WriteBatch

from statestore.errors import FormatTooNew, Locked, Misuse, TaskCorrupted
from statestore.model.ids import Position, TopicPartition
from statestore.runtime.public import open_store
from statestore.stores.specs import persistent_key_value_store
from tests.builders import DEADLINE_S, child
from tests.contract.conftest import rocks_rows
from tests.contract.store_worlds import StoreWorld

LOG = TopicPartition("shop-prices-changelog", 0)
OTHER = TopicPartition("shop-prices-changelog", 1)


@pytest.fixture(params=[False, True], ids=["bytes", "typed"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StoreWorld]:
    with StoreWorld(True, request.param, tmp_path) as made:
        yield made


# Opening again (S3, S12).


def test_what_was_committed_is_there_after_reopening_and_nothing_else(durable: StoreWorld) -> None:
    store = durable.holding("a=1 b=2")
    store.put_all(durable.pairs("a=3 c=4 b"))
    store.commit({LOG: 9}, position=Position.of({"in": {0: 8}}))
    store.put_all(durable.pairs("a=lost d=lost"))
    store = durable.reopened()
    assert durable.shown(store.all()) == "a=3 c=4"
    assert (store.committed_offset(LOG), store.durable_offset(LOG)) == (9, 9)
    assert store.position() == Position.of({"in": {0: 8}})


def test_an_in_memory_store_begins_empty(tmp_path: Path) -> None:
    world = StoreWorld(False, True, tmp_path)
    world.holding("a=1")
    assert world.shown(world.reopened().all()) == ""


def test_the_files_hold_committed_rows_offsets_and_format_and_no_pending_write(
    durable: StoreWorld,
) -> None:
    store = durable.open()
    store.put_all(durable.pairs("a=1 b=2"))
    store.commit({LOG: 9}, position=Position.of({"in": {0: 8}}))
    store.put_all(durable.pairs("a=lost c=lost"))
    store.close()
    encode = store.spec.value_serde.serialize
    assert rocks_rows(durable.folder, "data") == {
        b"a": encode(durable.value("1")),
        b"b": encode(durable.value("2")),
    }
    assert rocks_rows(durable.folder, "offsets") == {
        b"f": b'{"kind":"keyvalue","version":1}',
        b"oshop-prices-changelog\0\0\0\0\0": (9).to_bytes(8, "big"),
        b"pin\0\0\0\0\0": (8).to_bytes(8, "big"),
    }


def raw_write(folder: Path, table: str, key: bytes, value: bytes | None) -> None:
    """A row written behind the store's back."""
    names = Rdict.list_cf(str(folder), Options(raw_mode=True))
    db = Rdict(str(folder), Options(raw_mode=True), {n: Options(raw_mode=True) for n in names})
    rows = WriteBatch(raw_mode=True)
    rows.set_default_column_family(db.get_column_family_handle(table))
    if value is None:
        rows.delete(key)
    else:
        rows.put(key, value)
    db.write(rows)
    rows.set_default_column_family(None)
    db.close()


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        ({"kind": "keyvalue", "version": 2}, FormatTooNew, "has format 2.*upgrade statestore"),
        ({"kind": "versioned", "version": 1}, Misuse, "a versioned store, not a keyvalue"),
        (None, TaskCorrupted, "data without a format row"),
    ],
)
def test_a_format_this_code_does_not_read_is_refused_and_the_files_stay_as_they_are(
    durable: StoreWorld, row: object, error: type[Exception], message: str
) -> None:
    durable.holding("a=1").close()
    raw_write(durable.folder, "offsets", b"f", None if row is None else msgspec.json.encode(row))
    for _ in range(2):
        with pytest.raises(error, match=message) as caught:
            durable.open()
        assert str(durable.folder) in str(caught.value)
    assert list(rocks_rows(durable.folder, "data")) == [b"a"]


def test_a_fresh_store_that_was_never_committed_to_opens_again(durable: StoreWorld) -> None:
    durable.open()
    assert durable.shown(durable.reopened().all()) == ""


def test_a_store_open_in_this_process_is_locked(durable: StoreWorld) -> None:
    store = durable.holding("a=1")
    with pytest.raises(Locked, match="open elsewhere"):
        durable.open()
    assert durable.shown(store.all()) == "a=1"


OPENING = """
import sys
import statestore as ss
try:
    ss.open_store(ss.persistent_key_value_store("prices"), sys.argv[1])
except ss.errors.Locked as error:
    print(error)
    sys.exit(error.exit_code)
"""


def test_a_store_open_in_another_process_is_locked(durable: StoreWorld) -> None:
    durable.holding("a=1")
    with child(OPENING, durable.directory) as other:
        output, _ = other.communicate(timeout=DEADLINE_S)
    assert other.returncode == Locked.exit_code
    assert "wait until it is closed" in output


def test_a_persistent_store_needs_a_directory_and_makes_it(tmp_path: Path) -> None:
    spec = persistent_key_value_store("prices")
    with pytest.raises(Misuse, match="'prices' is persistent: pass the directory"):
        open_store(spec)
    open_store(spec, str(tmp_path / "not" / "there")).close()
    assert (tmp_path / "not" / "there" / "prices" / "CURRENT").exists()
