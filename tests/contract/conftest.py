"""The engines under contract, each with a back door that reads what is there without the engine."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rocksdict import AccessType, Options, Rdict

from statestore.engines.memory import MemoryEngine
from statestore.engines.rocks import RocksMemory, RocksTuning, open_rocks
from statestore.ports import Engine
from tests.contract.broker_worlds import kafka_world, reading_world, wire_world, world
from tests.contract.versioned_worlds import on_disk, opened

# Fixtures of the broker suite and of versioned stores.
__all__ = ["kafka_world", "on_disk", "opened", "reading_world", "wire_world", "world"]

TABLES = ("data", "offsets")
MEMORY = RocksMemory.of_bytes(16 << 20)


def fails(engine: Engine, action: Callable[[], object]) -> Exception:
    """What a store would raise: the engine's own errors pass through `failure`."""
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever it is, `failure` judges it
        return engine.failure(error) or error
    return AssertionError("nothing was raised")


def rocks_rows(folder: Path, table: str) -> dict[bytes, bytes]:
    """What is durable in the folder, by rocksdict alone; nobody may write there meanwhile."""
    names = Rdict.list_cf(str(folder), Options(raw_mode=True))
    families = {name: Options(raw_mode=True) for name in names}
    db = Rdict(str(folder), Options(raw_mode=True), families, AccessType.read_only())
    rows: Iterator[Any] = db.get_column_family(table).items()
    return dict(rows)


@dataclass
class EngineUnderTest:
    """One kind of engine and the means to open it again and to look behind it."""

    kind: str
    folder: Path
    opened: list[Engine] = field(default_factory=list)

    def open(self, tables: Sequence[str] = TABLES) -> Engine:
        engine: Engine
        if self.kind == "memory":
            engine = MemoryEngine(tables)
        else:
            engine = open_rocks(self.folder, tables=tables, tuning=RocksTuning(memory=MEMORY))
        self.opened.append(engine)
        return engine

    def rows(self, engine: Engine, table: str) -> dict[bytes, bytes]:
        """What the engine holds; closes one on disk to look at its files."""
        if isinstance(engine, MemoryEngine):
            return dict(engine.table(table)._rows)
        engine.close()
        return rocks_rows(self.folder, table)


@pytest.fixture(params=["memory", "rocks"])
def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[EngineUnderTest]:
    tested = EngineUnderTest(request.param, tmp_path / "db")
    yield tested
    for engine in tested.opened:
        engine.close()


@pytest.fixture
def engine(under_test: EngineUnderTest) -> Engine:
    return under_test.open()
