"""How the versions of one store are decoded, and what its reads say of themselves."""

from typing import Any, Final, Generic

from statestore.errors import Misuse
from statestore.model.modes import Time, to_ms
from statestore.model.records import K, V, VersionedRecord
from statestore.stores import versioned_layout as layout
from statestore.stores.codec import Codec
from statestore.stores.specs import VersionedSpec
from statestore.stores.version_search import GoneHistory, Span, Valid, View, overlapping, valid_at
from statestore.stores.versioned_layout import TIME_MAX, TIME_MIN


class VersionReads(Generic[K, V]):
    """The questions to a versioned store, in its types, whoever asks."""

    def __init__(self, spec: VersionedSpec[K, V]) -> None:
        self.codec: Final = Codec(spec)
        self._name = spec.name
        self.gone: Final = GoneHistory(spec.name)

    def record(self, row: bytes, valid_to: int | None) -> VersionedRecord[V] | None:
        """A version as users see it; None: a tombstone."""
        begins, value = layout.read_version(row)
        if value is None:
            return None
        return VersionedRecord(self.codec.read_value(value), begins, valid_to)

    def as_of(self, view: View, key: bytes, time: int) -> VersionedRecord[V] | None:
        """The version valid at `time`."""
        found = valid_at(view, [key], [time])[0]
        if found is None:
            self.gone.tell(time, view.bound)
            return None
        return self.record(*found)

    def history(self, view: View, key: bytes, first: int, last: int) -> list[VersionedRecord[V]]:
        """The versions of the span, latest first."""
        latest = view.get_many([key])[0]
        if latest is None:
            return []
        return [self._valid(one) for one in overlapping(view, key, latest, Span(first, last))]

    def span(self, from_time: Time | None, to_time: Time | None) -> tuple[int, int]:
        """The closed interval asked for; Misuse if it ends before it begins."""
        first = TIME_MIN if from_time is None else self.time(from_time)
        last = TIME_MAX if to_time is None else self.time(to_time)
        if first > last:
            raise Misuse(f"store {self._name!r}: history from {first} to {last}: swap them")
        return first, last

    def time(self, time: Time) -> int:
        """Milliseconds; Misuse if that is no time."""
        ms: object = to_ms(time)
        if type(ms) is int and TIME_MIN <= ms <= TIME_MAX:
            return ms
        raise Misuse(
            f"store {self._name!r}: {time!r} is no time: want milliseconds since the epoch "
            "(64 bits) or an aware datetime"
        )

    def times(self, times: list[Time]) -> list[int]:
        """The same for many."""
        items: list[Any] = times
        plain = set(map(type, items)) == {int} and min(items) >= TIME_MIN and max(items) <= TIME_MAX
        return items if plain else [self.time(time) for time in items]

    def _valid(self, one: Valid) -> VersionedRecord[V]:
        begins, value = layout.read_version(one.row)
        assert value is not None, "tombstones are left out"
        return VersionedRecord(self.codec.read_value(value), begins, one.valid_to)
