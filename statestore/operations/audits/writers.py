"""Tells which serde wrote each row of a store, as the rows say it themselves. Pure.

A row of a store with migrations says its generation (docs/adr/0022), and a row that a serde of a
schema registry wrote begins with the id of its schema. What wrote a row is here a text, as `2` for
a generation, or `0 17` for a generation and a schema. It is empty for rows that have no value of
the pipeline's, and None for rows that no serde wrote that `topology.json` knows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from statestore.layout.audits import AuditedWriter
from statestore.model.records import OF_REGISTRY
from statestore.stores.in_windows import TIME_ROW
from statestore.stores.migration import GONE, generation_of


class Writers:
    """The serdes that wrote rows of one store, by the generations of their rows."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """`names`: as recorded; none: nothing was recorded, so nothing is told of any row."""
        self._names = {number: name for number, name in names.items() if name != GONE.name}
        self._marks = max(names, default=0) > 0
        self._with_ids = {
            number for number, name in self._names.items() if name.startswith(OF_REGISTRY)
        }

    def of_rows(self, keys: Sequence[bytes | None], values: Sequence[bytes]) -> list[str | None]:
        """Return what wrote each row."""
        if self._marks or self._with_ids:
            told = list(map(self._of_value, values))
        else:
            told = ["0" if self._names else ""] * len(values)
        if TIME_ROW in keys:
            told = ["" if key == TIME_ROW else one for key, one in zip(keys, told, strict=True)]
        return told

    def told(self, rows: Mapping[str | None, int]) -> list[AuditedWriter]:
        """Return the serdes that wrote so many rows, the newest first."""
        found = []
        for text, count in rows.items():
            if text:
                number, _, schema_id = text.partition(" ")
                generation = int(number)
                found.append(
                    AuditedWriter(
                        self._names[generation],
                        generation,
                        count,
                        int(schema_id) if schema_id else None,
                    )
                )
        return sorted(found, key=lambda one: (-one.generation, one.schema_id or 0))

    def _of_value(self, row: bytes) -> str | None:
        generation, value = generation_of(row) if self._marks else (0, row)
        if generation not in self._names:
            return None
        if generation not in self._with_ids:
            return str(generation)
        schema_id = _schema_id(value)
        return None if schema_id is None else f"{generation} {schema_id}"


class WrittenRows:
    """How many rows of a store each serde wrote, and the keys of rows that none did."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self._writers = Writers(names)
        self.counts: Counter[str | None] = Counter()
        self.unknown: list[bytes | None] = []

    def add(self, keys: Sequence[bytes | None], values: Sequence[bytes]) -> None:
        """Count more rows."""
        told = self._writers.of_rows(keys, values)
        self.counts.update(told)
        if None in told:
            self.unknown += [key for key, one in zip(keys, told, strict=True) if one is None]

    def told(self) -> list[AuditedWriter]:
        """Return the counts, the newest serde first."""
        return self._writers.told(self.counts)


def _schema_id(data: bytes) -> int | None:
    """Return the id with which Confluent's wire format begins: after a byte 0, in four bytes."""
    return int.from_bytes(data[1:5], "big") if len(data) >= 5 and not data[0] else None
