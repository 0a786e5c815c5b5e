"""What a server of state says of rows, as its clients read it."""

from typing import Any

import msgspec


class Freshness(msgspec.Struct, frozen=True, kw_only=True):
    """How new the answer of one stream task is.

    `position`: of each input, the offset processed LAST. `changelog`: the offsets NEXT to read.
    `stale`: there may be commits that the answer lacks and is not about to get.
    """

    stream_task: str
    owner: str
    stale: bool
    commit_number: int | None = None
    committed_ms: int | None = None
    age_ms: int | None = None
    position: dict[str, dict[int, int]] = {}
    changelog: dict[str, dict[int, int]] = {}
    lag_records: int | None = None
    lag_seconds: float | None = None
    problem: str | None = None


class ServedRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row. A version, a window and a session also have their times, in ms since the epoch.

    `valid_to_ms` None: the version is still valid.
    """

    key: Any
    value: Any
    timestamp_ms: int | None = None
    valid_to_ms: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
