"""How databases are set up: memory shared in one bound, and the options hook."""

import os
import random
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options

import statestore as ss
from statestore.engines.rocks import open_rocks
from statestore.errors import InvalidSetting
from statestore.runtime import databases
from statestore.runtime.databases import options_hook
from statestore.settings import Settings
from tests.builders import eventually
from tests.contract.conftest import rocks_rows

SEEN: list[str] = []
SPEC = ss.persistent_key_value_store("prices")
LOG = ss.TopicPartition("prices-changelog", 0)
HERE = "tests.contract.test_opening"


def tune(store: str, options: Options) -> None:
    """No compaction, and files that say so."""
    SEEN.append(store)
    options.set_disable_auto_compactions(True)
    options.set_level_zero_file_num_compaction_trigger(2)


def explode(store: str, options: Options) -> None:
    raise RuntimeError("no such option")


NOT_A_FUNCTION = 7


def with_setter(path: str) -> dict[str, object]:
    return {"rocksdb.config.setter": path}


def test_the_config_setter_gets_store_and_options_and_has_the_last_word(tmp_path: Path) -> None:
    SEEN.clear()
    with ss.open_store(SPEC, tmp_path, settings=with_setter(f"{HERE}:tune")) as store:
        for number in range(8):
            store.put(b"a", b"%d" % number)
            store.commit()
            store.staged.make_durable()
    assert set(SEEN) == {"prices"}
    assert len(list((tmp_path / "prices").glob("*.sst"))) >= 8  # compaction would have left fewer
    assert rocks_rows(tmp_path / "prices", "data") == {b"a": b"7"}


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere.at.all:tune", "No module named 'nowhere'"),
        (f"{HERE}:nothing", "has no attribute 'nothing'"),
        (f"{HERE}:NOT_A_FUNCTION", "names no function"),
        (f"{HERE}", "want module:function"),
        (":tune", "want module:function"),
        (f"{HERE}:explode", "failed for store 'prices': RuntimeError: no such option"),
    ],
)
def test_a_bad_config_setter_is_refused_naming_it_and_opens_nothing(
    tmp_path: Path, path: str, message: str
) -> None:
    with pytest.raises(InvalidSetting, match=message) as caught:
        ss.open_store(SPEC, tmp_path, settings=with_setter(path))
    assert repr(path) in str(caught.value)
    assert not (tmp_path / "prices" / "CURRENT").exists()
    ss.open_store(SPEC, tmp_path).close()


def test_no_config_setter_means_no_hook() -> None:
    assert options_hook(Settings(), "prices") is None


def test_all_stores_of_a_process_share_one_bound_on_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[Any] = []

    def noting(path: Path, **arguments: Any) -> Any:
        used.append(arguments["tuning"].memory)
        return open_rocks(path, **arguments)

    monkeypatch.setattr(databases, "open_rocks", noting)
    small: dict[str, object] = {"statestore.memory.bytes": 16 << 20}
    stores = [
        ss.open_store(ss.persistent_key_value_store(f"s{i}"), tmp_path, settings=small)
        for i in range(3)
    ]
    assert len({id(memory) for memory in used}) == 1
    value = os.urandom(1000)
    for store in stores:
        store.put_all([(b"%06d" % i, value) for i in range(20_000)])
        store.commit()
        store.staged.make_durable()
        assert sum(1 for _ in store.all()) == 20_000
    assert used[0].cache.get_usage() <= 18 << 20
    for store in stores:
        store.close()


def test_a_flush_beside_one_of_rocksdbs_own_is_no_failure(tmp_path: Path) -> None:
    """Where the lag may be longer than a write buffer, RocksDB flushes by itself, too."""
    rng = random.Random(1)
    rows = [(rng.randbytes(16), rng.randbytes(84)) for _ in range(400_000)]
    settings = {
        "statestore.wal": False,
        "statestore.flush.lag.max.bytes": 16 << 20,
        "statestore.flush.lag.max.records": 400_000,
    }
    with ss.open_store(SPEC, tmp_path, settings=settings) as store:
        for at in range(0, len(rows), 20_000):
            store.put_all(rows[at : at + 20_000])
            store.commit({LOG: at + 20_000})
        eventually(lambda: (store.durable_offset(LOG) or 0) >= 320_000, "the flush is done")
    with ss.open_store(SPEC, tmp_path, settings=settings) as store:
        assert store.committed_offset(LOG) == 400_000
