"""Makes the pages: what they show, and where each stands. Nothing here knows a web framework."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from statestore.layout.audits import AuditVerdict
from statestore.model.texts import span_text, stores_text, time_text
from statestore.operations.at_rest import GlobalFiles, StoreFiles
from statestore.operations.deployed import Deployed
from statestore.operations.exports.manifest import made_after
from statestore.operations.left_out import left_out_rows
from statestore.ui import charts
from statestore.ui.answers import Level, answers_of, level_of
from statestore.ui.browser import Browsed, Question
from statestore.ui.charts import Box
from statestore.ui.looks import Details, LastLook, Look, Lookout
from statestore.ui.timeline import BUCKETS, Timeline

ON_A_PAGE: Final = 25
TASKS_ON_A_PAGE: Final = 50
_FIRST_WAIT_S: Final = 1.0
_VERDICTS: Final = {AuditVerdict.RIGHT: Level.GOOD, AuditVerdict.WRONG: Level.BAD}


class Page(NamedTuple):
    """One page of a list: its items, and the numbers of the pages beside it."""

    items: Sequence[Any]
    number: int
    pages: int
    total: int


class Pages:
    """Renders the pages; `root` is the address below which they stand, without a slash at the end.

    A method returns the HTML, or None if there is no such application or store.
    """

    def __init__(self, lookout: Lookout, mounted_at: str | None = None) -> None:
        """`mounted_at`: where Airflow serves the pages below its own address; None: it does not."""
        self._lookout = lookout
        self._mounted_at = mounted_at

    def overview(self, root: str, *, search: str = "", page: int = 1) -> str:
        """The applications, with the three answers for each."""
        names = [name for name in self._lookout.names() if search.lower() in name.lower()]
        shown = _page(names, page, ON_A_PAGE)
        seen = self._lookout.seen(shown.items, wait_s=_FIRST_WAIT_S)
        rows = [_row(name, seen.get(name, LastLook())) for name in shown.items]
        return _render("overview.html", root=root, rows=rows, page=shown, search=search)

    def application(self, root: str, name: str, *, page: int = 1) -> str | None:
        """Everything about one application."""
        seen = self._lookout.seen([name], details=True, wait_s=_FIRST_WAIT_S).get(name)
        if seen is None:
            return None
        airflow = None if self._mounted_at is None else root.removesuffix(self._mounted_at)
        shown: dict[str, Any] = {
            "root": root,
            "name": name,
            "seen": seen,
            "look": seen.look,
            "airflow": airflow,
        }
        if seen.look is not None:
            details = seen.details or Details()
            status, work = seen.look.status, seen.look.work
            shown |= {
                "status": status,
                "answers": answers_of(status),
                "tasks": _page(status.stream_tasks, page, TASKS_ON_A_PAGE),
                "charts": _charts(work),
                "details": details,
                "graph": _graph(root, name, details.deployed, seen.look),
                "stores": _stores(details),
            }
        return _render("application.html", **shown)

    def store(self, root: str, name: str, question: Question) -> str | None:
        """The rows of a store that a question asks for."""
        runtime = self._lookout.open(name)
        if runtime is None:
            return None
        with runtime:
            found = Browsed.of(runtime, question, self._lookout.pipeline_of(name))
        return _render("store.html", root=root, name=name, asked=question, found=found)

    def missing(self, root: str, title: str, what: str) -> str:
        """A page that says what is missing, or why it cannot be shown."""
        return _render("missing.html", root=root, title=title, what=what)


def _row(name: str, seen: LastLook) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "seen": seen, "status": None}
    if seen.look is not None:
        status, work = seen.look.status, seen.look.work
        row |= {
            "status": status,
            "answers": answers_of(status),
            "spark": charts.sparkline(work.rates, _told(work)),
        }
    return row


def _told(work: Timeline) -> str:
    if work.is_empty:
        return "no records lately"
    span_s = (work.end_ms - work.begin_ms) / 1000
    return (
        f"{sum(work.records):,.0f} records in the last {span_text(span_s)}, "
        f"at most {max(work.rates):,.0f} a second"
    )


def _charts(work: Timeline) -> dict[str, Any]:
    """The work of the last hours, drawn."""
    seconds = {
        "restore": work.restore_seconds,
        "poll": work.poll_seconds,
        "process": work.process_seconds,
        "commit": work.commit_seconds,
    }
    labels = []
    for place in range(BUCKETS):
        at_ms = round(work.begin_ms + place * work.bucket_ms)
        each = ", ".join(f"{name} {values[place]:.1f} s" for name, values in seconds.items())
        commits = f"{work.commits[place]:.0f} commits"
        labels.append(f"{time_text(at_ms)}: {work.records[place]:,.0f} records, {commits}; {each}")
    sums = {name: span_text(sum(values)) for name, values in seconds.items()}
    lags = [lag for lag in work.lag_records if lag is not None]
    told_lag = f"lag: last {lags[-1]:,} records, at most {max(lags):,}" if lags else "no lag known"
    return {
        "empty": work.is_empty,
        "begin_ms": work.begin_ms,
        "rate": charts.sparkline(work.rates, _told(work), width=720),
        "rate_told": _told(work),
        "lag": charts.sparkline(work.lag_records, told_lag, width=720),
        "lag_told": told_lag,
        "phases": charts.stacked(seconds, labels, ", ".join(f"{n} {s}" for n, s in sums.items())),
        "sums": sums,
        "commits": round(sum(work.commits)),
    }


def _graph(root: str, name: str, deployed: Deployed, look: Look) -> Markup:
    """The topology as it was deployed last: topics, sub-topologies and stores.

    An edge between a topic and a sub-topology has the records per second, if they are known.
    """
    boxes: dict[str, Box] = {}
    edges: dict[tuple[str, str], str] = {}
    internal = {topic for part in deployed.sub_topologies for topic in part.internal or ()}

    def add_topic(topic: str) -> str:
        kind = "repartition" if topic in internal else "topic"
        boxes[f"topic {topic}"] = Box(topic, kind, kind)
        return f"topic {topic}"

    def full(topic: str) -> str:
        return f"{name}-{topic}" if topic in internal else topic

    for part in deployed.sub_topologies:
        total = look.rates.get(part.ordinal)
        alone = total if len(part.source_topics) == 1 else None
        own = f"part {part.ordinal}"
        for topic in part.source_topics:
            rate = look.taken.get((part.ordinal, full(topic)), alone)
            edges[add_topic(topic), own] = _rate_text(rate)
        tasks = "" if part.tasks is None else f"{part.tasks} stream tasks"
        told = [tasks, _rate_text(total) if alone is None else ""]
        boxes[own] = Box(f"sub-topology {part.ordinal}", "part", ", ".join(filter(None, told)))
        for store, known in deployed.stores.items():
            if known.sub_topology == part.ordinal:
                address = address_of(root, name, store)
                boxes[f"store {store}"] = Box(store, "store", known.kind, address)
                edges[own, f"store {store}"] = ""
        for topic in part.sink_topics:
            edges[own, add_topic(topic)] = _rate_text(look.sent.get((part.ordinal, full(topic))))
    parts = len(deployed.sub_topologies)
    return charts.graph(boxes, edges, f"{parts} sub-topologies, {len(deployed.stores)} stores")


def _rate_text(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:,.0f}/s" if rate >= 10 or not rate else f"{rate:.2g}/s"


def _stores(details: Details) -> list[dict[str, Any]]:
    """Each store once, with the bytes of all its partitions; one of a global table has no more."""
    deployed = details.deployed
    sizes: dict[str, int] = {}
    partitions: dict[str, int] = {}
    files: list[StoreFiles | GlobalFiles] = [*details.stores, *details.global_stores]
    for file in files:
        sizes[file.store] = sizes.get(file.store, 0) + file.size_bytes
        partitions[file.store] = partitions.get(file.store, 0) + 1
    names = sorted(sizes.keys() | deployed.stores.keys() | deployed.global_stores.keys())
    return [
        {
            "name": each,
            "kind": _kind_of(deployed, each),
            "known": deployed.stores.get(each) or deployed.global_stores.get(each),
            "bytes": sizes.get(each),
            "partitions": partitions.get(each, 0),
        }
        for each in names
    ]


def _kind_of(deployed: Deployed, store: str) -> str:
    if store in deployed.global_stores:
        return f"global, of {deployed.global_stores[store].origin()}"
    known = deployed.stores.get(store)
    if known is None:
        return "not deployed"
    return known.kind if known.persistent else f"{known.kind}, in memory"


def address_of(root: str, name: str, store: str | None = None, **fields: object) -> str:
    """Return the address of an application's page, or of one of its stores."""
    path = f"{root}/applications/{quote(name, safe='')}"
    if store is not None:
        path += f"/stores/{quote(store, safe='')}"
    given = {key: value for key, value in fields.items() if value not in (None, "", False)}
    return f"{path}?{urlencode(given)}" if given else path


def _page(items: Sequence[Any], number: int, size: int) -> Page:
    count = max(1, -(-len(items) // size))
    number = min(max(1, number), count)
    return Page(items[(number - 1) * size : number * size], number, count, len(items))


def _render(template: str, **shown: Any) -> str:
    return _templates().get_template(template).render(**shown)


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("statestore.ui"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "span": span_text,
        "time": time_text,
        "size": _size_text,
        "stores": stores_text,
    }
    made.globals |= {
        "address_of": address_of,
        "left_out_rows": left_out_rows,
        "level_of": level_of,
        "level_of_verdict": lambda verdict: _VERDICTS.get(verdict, Level.CARE),
        "made_after": made_after,
    }
    return made


def _size_text(size: int | None) -> str:
    if size is None:
        return "?"
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
