"""A pipeline that leaves records out in every way there is; its topics begin with a prefix."""

from typing import Any

import statestore as ss
from statestore import serdes
from tests.kafka.run_pipelines import prefix

MINUTE_MS = 60_000


def checked(_key: str, value: Any) -> Any:
    if value.get("refuse"):
        raise ValueError("refused")
    return value


def leaving_out() -> ss.Topology:
    """Some are refused, some meet no name, and some come too late for their window."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    names = b.table(f"{prefix()}-names", name="names-in", materialized=ss.Materialized("names"))
    clicks = b.stream(f"{prefix()}-in", name="clicks").map_values(checked, name="checked")
    clicks.join(names, lambda _click, name: name, name="named").to(f"{prefix()}-out")
    windows = clicks.group_by_key().windowed_by(ss.TumblingWindows(MINUTE_MS))
    windows.count("counts", name="per-minute")
    return b.build()
