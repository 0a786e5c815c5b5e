"""Versioned stores under contract: persistent and in memory, or on disk and opened again."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.runtime.public import open_store
from statestore.stores.specs import VersionedSpec
from statestore.stores.versioned.store import TransactionalVersionedStore

Store = TransactionalVersionedStore[Any, Any]
Open = Callable[..., Store]
NO_LOG = {"statestore.wal": False}


@pytest.fixture(params=[True, False], ids=["persistent", "in-memory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    stores: list[Store] = []

    def open_one(retention: int = 100, interval: int | None = 10, **fields: Any) -> Store:
        spec = VersionedSpec(
            fields.get("name", "rates"),
            retention,
            fields.get("key_serde", serdes.BYTES),
            fields.get("value_serde", serdes.BYTES),
            interval,
            persistent=request.param,
        )
        store: Store = open_store(spec, tmp_path, settings=NO_LOG)
        stores.append(store)
        return store

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[Open]:
    stores: list[Store] = []

    def open_one(retention: int = 100, interval: int | None = 10) -> Store:
        for store in stores:
            store.close()
        spec = ss.persistent_versioned_key_value_store("rates", retention, interval)
        stores.append(open_store(spec, tmp_path, settings=NO_LOG))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()
