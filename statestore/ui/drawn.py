"""What the scripts of the page draw, as data: charts of the last hours, and the topology.

Nothing in it is HTML. The scripts make text of every name.
"""

from typing import Any, NamedTuple

import msgspec

from statestore.model.texts import number_text, span_text
from statestore.operations.deployed import Deployed, DeployedPart
from statestore.ui.paths import address_of, topics_address_of
from statestore.ui.polling import PollResult
from statestore.ui.timeline import Span, Timeline


class ShownStore(NamedTuple):
    """A store in a box of the topology."""

    name: str
    note: str
    address: str


class Box(NamedTuple):
    """A box of the topology: a topic, a file, or a sub-topology with its stores."""

    id: str
    name: str
    kind: str
    note: str = ""
    address: str = ""
    stores: list[ShownStore] = []  # noqa: RUF012  # nobody changes it


class Edge(NamedTuple):
    """An arrow from box to box; `note`: the records per second, if they are known."""

    begin: str
    end: str
    note: str = ""


class Graph(NamedTuple):
    """The topology as it was deployed last."""

    boxes: list[Box]
    edges: list[Edge]

    def names(self) -> dict[str, str]:
        """Return the name of each box, by its id."""
        return {box.id: box.name for box in self.boxes}

    def json(self) -> str:
        """The same for the script that draws it."""
        boxes = [box._asdict() | {"stores": [it._asdict() for it in box.stores]} for box in self[0]]
        return msgspec.json.encode({"boxes": boxes, "edges": self.edges}).decode()


def graph_of(root: str, name: str, deployed: Deployed, look: PollResult) -> Graph:
    """Return the topology of an application: topics, sub-topologies and their stores."""
    boxes: dict[str, Box] = {}
    edges: list[Edge] = []
    internal = {topic for part in deployed.sub_topologies for topic in part.internal or ()}

    def full(topic: str) -> str:
        return f"{name}-{topic}" if topic in internal else topic

    def add_topic(topic: str) -> str:
        own = f"topic {topic}"
        kind, note = ("repartition", "internal topic") if topic in internal else ("topic", "topic")
        address = topics_address_of(root, name, topic=full(topic))
        boxes[own] = Box(own, topic, kind, note, address)
        return own

    for part in deployed.sub_topologies:
        total = look.rates.get(part.ordinal)
        alone = total if len(part.source_topics) == 1 else None
        own = f"part {part.ordinal}"
        for topic in part.source_topics:
            rate = look.taken.get((part.ordinal, full(topic)), alone)
            edges.append(Edge(add_topic(topic), own, rate_text(rate)))
        told = [_tasks_text(part), rate_text(total) if alone is None else ""]
        note = ", ".join(filter(None, told))
        stores = [
            ShownStore(store, known.kind, address_of(root, name, store))
            for store, known in deployed.stores.items()
            if known.sub_topology == part.ordinal
        ]
        boxes[own] = Box(own, f"Sub-topology {part.ordinal}", "part", note, stores=stores)
        for topic in part.sink_topics:
            sent = look.sent.get((part.ordinal, full(topic)))
            edges.append(Edge(own, add_topic(topic), rate_text(sent)))
    for store, shared in deployed.global_stores.items():
        shown = ShownStore(store, "global", address_of(root, name, store))
        own = f"global {store}"
        boxes[own] = Box(own, "Global table", "part", "on every host", stores=[shown])
        if shared.topic is not None:
            edges.append(Edge(add_topic(shared.topic), own))
    return Graph(list(boxes.values()), edges)


def _tasks_text(part: DeployedPart) -> str:
    if part.tasks is None:
        return ""
    return f"{part.tasks:,} stream task{'' if part.tasks == 1 else 's'}"


def rate_text(rate: float | None) -> str:
    """Records per second; empty if they are not known."""
    return "" if rate is None else f"{number_text(rate)}/s"


def told_of(work: Timeline, span: Span) -> str:
    """What was done in a span, in words."""
    if work.is_empty:
        return f"no records in the last {span.words}"
    return (
        f"{number_text(sum(work.records))} records in the last {span.words}, "
        f"at most {number_text(max(work.rates))} a second"
    )


def lag_told_of(work: Timeline) -> str:
    """How far behind all tasks were, in words."""
    lags = [lag for lag in work.lag_records if lag is not None]
    if not lags:
        return "not known"
    if not any(lags):
        return "never behind"
    return f"{number_text(lags[-1])} records at last, {number_text(max(lags))} at most"


def charts_json(work: Timeline) -> str:
    """The columns of the charts; times are the middles of the buckets, in seconds.

    A phase is how many stream tasks were in it on average: its seconds per second.
    """
    step, sums = work.bucket_ms / 1000, {name: sum(it) for name, it in work.seconds.items()}
    lags = [lag for lag in work.lag_records if lag is not None]
    shown: dict[str, Any] = {
        "times": [
            round(work.begin_ms / 1000 + (at + 0.5) * step, 3) for at in range(len(work.records))
        ],
        "begin": work.begin_ms / 1000,
        "end": work.end_ms / 1000,
        "rate": [_short(rate) for rate in work.rates],
        "rate_told": f"{number_text(max(work.rates))} at most",
        "lag": work.lag_records if any(lags) else [],
        "lag_told": lag_told_of(work),
        "phases": {name: [_short(each / step) for each in it] for name, it in work.seconds.items()},
        "phases_told": ", ".join(f"{name} {span_text(spent)}" for name, spent in sums.items()),
    }
    return msgspec.json.encode(shown).decode()


def _short(number: float) -> float:
    return float(f"{number:.4g}")
