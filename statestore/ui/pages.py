"""Makes the pages: what they show, and where each stands. Nothing here knows a web framework."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from statestore.layout.audits import AuditVerdict
from statestore.model.texts import number_text, size_text, span_text, stores_text, time_text
from statestore.operations.deployed import Deployed
from statestore.operations.exports.manifest import made_after
from statestore.operations.looking.at_rest import GlobalFiles, StoreFiles
from statestore.operations.status.left_out_sums import left_out_rows
from statestore.operations.status.status import State, Status
from statestore.ui.answers import Level, answers_of, level_of
from statestore.ui.browser import Browsed, Question
from statestore.ui.charts import sparkline
from statestore.ui.counters import counters_of
from statestore.ui.drawn import charts_json, graph_of, lag_told_of, told_of
from statestore.ui.paths import address_of, topics_address_of
from statestore.ui.polling import Details, LastPoll, Poller, PollResult
from statestore.ui.timeline import Span
from statestore.ui.topic_records import COUNTS, TopicQuestion, look_into

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

    def __init__(self, lookout: Poller, mounted_at: str | None = None) -> None:
        """`mounted_at`: where Airflow serves the pages below its own address; None: it does not."""
        self._lookout = lookout
        self._mounted_at = mounted_at

    def overview(self, root: str, *, search: str = "", page: int = 1) -> str:
        """The applications, with the three answers for each."""
        names = [name for name in self._lookout.names() if search.lower() in name.lower()]
        shown = _page(names, page, ON_A_PAGE)
        seen = self._lookout.seen(shown.items, wait_s=_FIRST_WAIT_S)
        rows = [_row(name, seen.get(name, LastPoll())) for name in shown.items]
        return _render("overview.html", root=root, rows=rows, page=shown, search=search)

    def application(self, root: str, name: str, *, page: int = 1, span: str = "") -> str | None:
        """Everything about one application; `span`: of the charts, if people chose one."""
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
            status = seen.look.status
            shown |= {
                "status": status,
                "never_ran": _never_ran(seen.look, details),
                "answers": answers_of(status),
                "counters": counters_of(status),
                "tasks": _page(status.stream_tasks, page, TASKS_ON_A_PAGE),
                "tasks_told": _tasks_told(status),
                "work": _work(seen.look, span),
                "details": details,
                "graph": graph_of(root, name, details.deployed, seen.look),
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

    def topics(self, root: str, name: str, question: TopicQuestion) -> str | None:
        """The records of a topic that a question asks for."""
        runtime = self._lookout.open(name)
        if runtime is None:
            return None
        with runtime:
            found = look_into(runtime, question, self._lookout.pipeline_of(name))
        shown: dict[str, Any] = {"root": root, "name": name, "asked": question, "found": found}
        return _render("topics.html", **shown, counts=COUNTS, limit=question.limit())

    def missing(self, root: str, title: str, what: str) -> str:
        """A page that says what is missing, or why it cannot be shown."""
        return _render("missing.html", root=root, title=title, what=what)


def _row(name: str, seen: LastPoll) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "seen": seen, "status": None}
    if seen.look is not None:
        status, span = seen.look.status, seen.look.day.fitting_span()
        work = seen.look.day.over(span)
        row |= {
            "status": status,
            "answers": answers_of(status),
            "work": told_of(work, span),
            "spark": None if work.is_empty else sparkline(work.rates, told_of(work, span)),
        }
    return row


def _work(look: PollResult, asked: str) -> dict[str, Any]:
    """The work of a span: the one that was asked for, or the one that fits."""
    is_known = asked in tuple(Span)
    span = Span(asked) if is_known else look.day.fitting_span()
    work = look.day.over(span)
    return {
        "span": span,
        "asked": asked if is_known else "",
        "spans": list(Span),
        "empty": work.is_empty,
        "told": told_of(work, span),
        "lag": lag_told_of(work),
        "commits": sum(work.commits),
        "json": "" if work.is_empty else charts_json(work),
    }


def _never_ran(look: PollResult, details: Details) -> bool:
    return look.status.state is State.NEW and not details.deployed.sub_topologies


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


def _tasks_told(status: Status) -> str:
    """How many stream tasks are in which state, and which one is furthest behind."""
    tasks = status.stream_tasks
    states = Counter(str(task.state) for task in tasks)
    told = ", ".join(f"{number_text(count)} {state}" for state, count in states.most_common())
    behind = [(task.lag_records or 0, task.stream_task) for task in tasks]
    records, name = max(behind, default=(0, ""))
    return f"{told}; {name} is {number_text(records)} records behind" if records else told


def _kind_of(deployed: Deployed, store: str) -> str:
    if store in deployed.global_stores:
        return f"global, of {deployed.global_stores[store].origin()}"
    known = deployed.stores.get(store)
    if known is None:
        return "not deployed"
    return known.kind if known.persistent else f"{known.kind}, in memory"


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
        "number": number_text,
        "span": span_text,
        "time": time_text,
        "when": _when,
        "size": size_text,
        "stores": stores_text,
    }
    made.globals |= {
        "address_of": address_of,
        "topics_address_of": topics_address_of,
        "left_out_rows": left_out_rows,
        "level_of": level_of,
        "level_of_verdict": lambda verdict: _VERDICTS.get(verdict, Level.CARE),
        "made_after": made_after,
    }
    return made


def _when(at_ms: int) -> Markup:
    """A time to the second, with all of it for programs, and for people who point at it."""
    exact = time_text(at_ms)
    short = exact[:19].replace("T", " ") if exact.endswith("Z") else exact
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact, exact, short)
