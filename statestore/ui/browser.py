"""Answers what somebody asks of one store: a key, a prefix, a time, the history of a key.

Rows come from a snapshot of each stream task, so that they are those of one commit. A question that
cannot be answered is a problem in words, never an error.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from statestore.commands.typed_keys import serialized
from statestore.errors import Misuse, StateStoreError
from statestore.model.modes import parse_time, to_ms
from statestore.model.texts import time_text, whole_number
from statestore.operations.deployed import DeployedGlobal
from statestore.operations.environment import Environment
from statestore.operations.pipelines import StoreSerdes, load_pipeline
from statestore.reading.decoding import Decoding
from statestore.reading.desk import Desk, Looked
from statestore.reading.questions import Range, VersionSpan
from statestore.stores.kinds.registry import kind_named
from statestore.ui.shown import decoded

ROWS_MAX: Final = 100
_SKIP_MAX: Final = 10_000


@dataclass(frozen=True)
class Question:
    """What the form of a store's page asks; empty fields ask nothing."""

    store: str
    key: str = ""
    prefix: str = ""
    as_of: str = ""
    history: bool = False
    raw: bool = False
    after: str = ""
    """How many rows earlier pages have shown."""


@dataclass(frozen=True)
class Browsed:
    """The answer: rows as text, by column; `problem`: why there is none."""

    kind: str = ""
    told: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    has_times: bool = False
    has_history: bool = False
    next_token: str = ""
    problem: str = ""
    notes: Sequence[str] = ()
    """What people should know of the rows."""

    @classmethod
    def of(
        cls, environment: Environment, question: Question, pipeline: str | None = None
    ) -> "Browsed":
        """Look for what the question asks for; `pipeline` may be imported for its serdes."""
        kind = ""
        try:
            with Desk(environment) as desk:
                kind = desk.view(question.store).kind.name
                return _Asked(desk.look(question.store), question, pipeline).answer()
        except (StateStoreError, OSError) as error:
            has_history = kind_named(kind).keeps_history
            return cls(kind, has_times=has_history, has_history=has_history, problem=str(error))


@dataclass(frozen=True)
class _Asked:
    looked: Looked
    question: Question
    pipeline: str | None
    notes: list[str] = field(default_factory=list)

    def answer(self) -> Browsed:
        question, view = self.question, self.looked.view
        skip = whole_number(question.after) or 0
        if skip > _SKIP_MAX:
            raise Misuse(f"more than {_SKIP_MAX:,} rows: ask for a key, or for a prefix")
        found = Decoding(view.name, self._serdes(), _IN_BYTES)
        wanted = self._wanted(found)
        with closing(self.looked.range(wanted, one_key=bool(question.key))) as rows:
            shown = list(islice(rows, skip, skip + ROWS_MAX + 1))
        more = len(shown) > ROWS_MAX
        spans = shown[0].span_names if shown else ()
        lines = [
            [
                "all" if row.task is None else str(row.task),
                decoded(row.entry.key, found.serdes.key),
                decoded(row.entry.value, found.serdes.value),
                *(_time(at_ms) for at_ms in row.entry[2 : 2 + len(spans)]),
            ]
            for row in shown[:ROWS_MAX]
        ]
        return Browsed(
            view.kind.name,
            self._told(len(lines), skip, more=more),
            ["stream task", "key", "value", *spans],
            lines,
            has_times=view.kind.keeps_history,
            has_history=view.kind.keeps_history,
            next_token=str(skip + ROWS_MAX) if more else "",
            notes=self.notes,
        )

    def _wanted(self, found: Decoding) -> Range:
        question = self.question
        key = found.key(question.key, serialized) if question.key else None
        is_prefix = question.prefix and key is None
        has_history = question.history and key is not None and self.looked.view.kind.keeps_history
        return Range(
            lo=key,
            hi=key,
            prefix=found.key(question.prefix, serialized) if is_prefix else None,
            as_of_ms=to_ms(parse_time(question.as_of)) if question.as_of else None,
            times=VersionSpan() if has_history else None,
        )

    def _told(self, count: int, skip: int, *, more: bool) -> str:
        if not count:
            if not self.question.key:
                return f"The store has no such row, {self._when()}."
            return f"The store does not have the key {self.question.key}."
        until = " and there are more" if more else ""
        return f"Rows {skip + 1} to {skip + count}{until}, {self._when()}."

    def _when(self) -> str:
        known = self.looked.view.known
        if isinstance(known, DeployedGlobal):
            return f"as of the last time that a run read {known.origin()}"
        return "as of the last commit of each task"

    def _serdes(self) -> StoreSerdes:
        view, raw = self.looked.view, self.question.raw
        if self.pipeline is not None and not raw:
            try:
                return view.serdes(_WAYS_OUT, topology=load_pipeline(self.pipeline))
            except StateStoreError as error:
                self.notes.append(f"Not decoded by the pipeline: {error}")
        return view.serdes("; ".join([*self.notes, _WAYS_OUT]), raw=raw or view.known is None)


_IN_BYTES = "show bytes"
_WAYS_OUT = (
    "show bytes instead, or have the page import the pipeline that has it: by --pipeline of "
    "`statestore ui`, or import_pipelines = true under [page] of the applications file"
)


def _time(at_ms: int | None) -> str:
    return "" if at_ms is None else time_text(at_ms)
