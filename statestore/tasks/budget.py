"""How much a stream task may leave uncommitted: one pure function (KIP-892, SEMANTICS S6)."""

from typing import NamedTuple

from statestore.settings import NO_LIMIT


class Usage(NamedTuple):
    """Pending writes of all stores of a slot."""

    size_bytes: int
    records: int


class Share(NamedTuple):
    """What one slot may hold pending; -1 none."""

    max_bytes: int
    max_records: int

    @classmethod
    def of_slot(cls, max_bytes: int, max_records: int, slots: int) -> "Share":
        """A host's limits divided among its slots."""

        def part(limit: int) -> int:
            return NO_LIMIT if limit == NO_LIMIT else max(1, limit // slots)

        return cls(part(max_bytes), part(max_records))


class Step(NamedTuple):
    """The next batch: whether to commit before it, and how many of its records to take."""

    commit_first: bool
    take: int


def plan_step(pending: Usage, per_record: tuple[float, float], waiting: int, share: Share) -> Step:
    """The next step when each input record is expected to add `per_record` (bytes, records).

    Commits first when all waiting records would cross the share and something is pending; takes at
    least one record, at most what the share can hold.
    """
    fits = waiting
    fits_empty = waiting
    for limit, used, growth in (
        (share.max_bytes, pending.size_bytes, per_record[0]),
        (share.max_records, pending.records, per_record[1]),
    ):
        if limit == NO_LIMIT or growth <= 0:
            continue
        fits = min(fits, int(max(0, limit - used) / growth))
        fits_empty = min(fits_empty, int(limit / growth))
    if fits >= waiting:
        return Step(commit_first=False, take=waiting)
    crowded = pending.size_bytes > 0 or pending.records > 0
    return Step(commit_first=crowded, take=max(1, fits_empty if crowded else fits))


def reached(pending: Usage, share: Share) -> bool:
    """Whether the share is used up, so that a commit is due."""
    return (share.max_bytes != NO_LIMIT and pending.size_bytes >= share.max_bytes) or (
        share.max_records != NO_LIMIT and pending.records >= share.max_records
    )
