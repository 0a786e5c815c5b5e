"""Every operator over stores whose rows are marked: results and topics are as without marks."""

from dataclasses import replace
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.stores.migration import MARK, MigratingSerde, migrating
from statestore.stores.specs import BuiltInSpec
from tests.contract.operator_cases import CASES, follow_table, topology
from tests.contract.test_serdes_in_context import KEYS, VALUES

NAMES = [name for name in CASES if "global" not in name]
"""Rows of global tables are those of their topic, which nobody migrates."""
OLD = ss.Migration(ss.Serde("OLD", serdes.JSON.serialize, serdes.JSON.deserialize))


@pytest.fixture
def marked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every store of the DSL a migration, but those of counts, which have none."""
    plain = ss.Materialized.table_spec

    def table_spec(
        self: ss.Materialized[Any, Any], key_serde: ss.Serde[Any], value_serde: ss.Serde[Any]
    ) -> BuiltInSpec:
        spec = plain(self, key_serde, value_serde)
        if spec.value_serde is serdes.INT64:
            return spec
        return replace(spec, value_serde=migrating(spec.value_serde, OLD))

    monkeypatch.setattr(ss.Materialized, "table_spec", table_spec)


@pytest.mark.usefixtures("marked")
@pytest.mark.parametrize("placed", [False, True], ids=["plain", "placed"])
@pytest.mark.parametrize("name", NAMES)
def test_every_operator_takes_marks_for_no_value_and_hands_on_none(
    name: str, *, placed: bool
) -> None:
    """`placed`: its serdes refuse bytes of another place, too."""
    built = topology(name, key_serde=KEYS, value_serde=VALUES) if placed else topology(name)
    follow_table(name, built)


@pytest.mark.usefixtures("marked")
def test_most_operators_have_a_store_with_marks() -> None:
    stores = [spec for name in NAMES for spec in topology(name).stores.values()]
    found: list[ss.Serde[Any]] = [spec.value_serde for spec in stores]
    marked = [serde for serde in found if isinstance(serde, MigratingSerde)]
    assert len(marked) > len(NAMES) // 4
    of_json = [serde for serde in marked if serde.name == "MIGRATED[1](JSON)"]
    assert len(of_json) > len(marked) // 2
    assert all(serde.serialize([]).startswith(MARK) for serde in of_json)
