"""Answers what somebody asks of one store: a key, a prefix, a time, the history of a key.

Rows come from a snapshot of each stream task, so that they are those of one commit. A question that
cannot be answered is a problem in words, never an error.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Final, NamedTuple

from statestore.commands.printing import text_of
from statestore.commands.typed_keys import serialized
from statestore.errors import Misuse, StateStoreError
from statestore.model.ids import TaskId
from statestore.model.modes import parse_time, to_ms
from statestore.model.records import Serde
from statestore.model.texts import time_text
from statestore.operations.at_rest import StoresAtRest
from statestore.operations.deployed import DeployedGlobal, DeployedStore
from statestore.operations.environment import Environment
from statestore.operations.pipelines import load_pipeline, serdes_of
from statestore.stores import serdes
from statestore.stores.codec import after_prefix
from statestore.stores.kinds import AnyReader
from statestore.stores.reads import Entry
from statestore.stores.specs import AtRestSpec, KeyValueSpec, VersionedSpec
from statestore.stores.versioned.store import VersionedReader

ROWS_MAX: Final = 100
_SKIP_MAX: Final = 10_000
_SHOWN_MAX: Final = 2000
"""How many characters of a key or a value are shown."""


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


class _Row(NamedTuple):
    task: TaskId | None
    entry: Entry


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
        kind = KeyValueSpec.kind
        try:
            with closing(StoresAtRest(environment)) as at_rest:
                shared = at_rest.deployed.global_stores.get(question.store)
                tasks: Sequence[TaskId | None] = [None]
                spec: AtRestSpec = KeyValueSpec(question.store, serdes.BYTES, serdes.BYTES)
                known = at_rest.deployed.stores.get(question.store)
                if shared is None:
                    kind = kind if known is None else known.kind
                    tasks = at_rest.find(question.store, kind=kind)
                    spec = at_rest.spec_in_bytes(question.store)
                asked = _Asked(at_rest, question, shared or known, spec, environment, pipeline)
                return asked.answer(tasks)
        except (StateStoreError, OSError) as error:
            versioned = kind == VersionedSpec.kind
            return cls(kind, has_times=versioned, has_history=versioned, problem=str(error))


@dataclass(frozen=True)
class _Asked:
    at_rest: StoresAtRest
    question: Question
    known: DeployedStore | DeployedGlobal | None
    spec: AtRestSpec
    environment: Environment
    pipeline: str | None
    _names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def answer(self, tasks: Sequence[TaskId | None]) -> Browsed:
        """Answer for these stream tasks; None: for the store of a global table."""
        question, versioned = self.question, self.spec.kind == VersionedSpec.kind
        skip = int(question.after) if question.after.isdecimal() else 0
        if skip > _SKIP_MAX:
            raise Misuse(f"more than {_SKIP_MAX:,} rows: ask for a key, or for a prefix")
        keys, values = self._serdes()
        with closing(self._rows(tasks, keys)) as found:
            rows = list(islice(found, skip, skip + ROWS_MAX + 1))
        more = len(rows) > ROWS_MAX
        spans = self._names
        columns = ["stream task", "key", "value", *spans]
        lines = [
            [
                "all" if row.task is None else str(row.task),
                _shown(row.entry.key, keys),
                _shown(row.entry.value, values),
                *(_time(at_ms) for at_ms in row.entry[2 : 2 + len(spans)]),
            ]
            for row in rows[:ROWS_MAX]
        ]
        return Browsed(
            self.spec.kind,
            self._told(len(lines), skip, more=more),
            columns,
            lines,
            has_times=versioned,
            has_history=versioned,
            next_token=str(skip + ROWS_MAX) if more else "",
            notes=self.notes,
        )

    def _told(self, count: int, skip: int, *, more: bool) -> str:
        if not count:
            if not self.question.key:
                return f"The store has no such row, {self._when()}."
            return f"The store does not have the key {self.question.key}."
        until = " and there are more" if more else ""
        return f"Rows {skip + 1} to {skip + count}{until}, {self._when()}."

    def _when(self) -> str:
        if isinstance(self.known, DeployedGlobal):
            return f"as of the last time that a run read {self.known.origin()}"
        return "as of the last commit of each task"

    def _rows(
        self, tasks: Sequence[TaskId | None], keys: Serde[Any]
    ) -> Generator[_Row, None, None]:
        question = self.question
        low = high = beyond = None
        if question.key:
            low = high = self._key(question.key, keys)
        elif question.prefix:
            low = self._key(question.prefix, keys)
            high = beyond = after_prefix(low)
        as_of_ms = to_ms(parse_time(question.as_of)) if question.as_of else None
        is_key, found_key = bool(question.key), False
        asked: Iterable[TaskId | None] = tasks
        if is_key and low is not None:
            asked = self.at_rest.likely_first(self.spec.name, tasks, low)
        for task in asked:
            with self._reader(task) as reader:
                self._names[:] = reader.span_names
                if question.history and is_key and isinstance(reader, VersionedReader):
                    with reader.history(low) as versions:
                        for version in versions:
                            found_key = True
                            yield _Row(task, Entry(low, *version))
                else:
                    with reader.entries(low, high, as_of_ms=as_of_ms) as found:
                        for entry in found:
                            found_key = is_key
                            if entry.key != beyond:
                                yield _Row(task, entry)
            if found_key:  # a key is in one partition
                return

    def _reader(self, task: TaskId | None) -> AbstractContextManager[AnyReader]:
        if task is None:
            return self.at_rest.global_reader(self.spec.name)
        return self.at_rest.reader(task, self.spec)

    def _key(self, text: str, serde: Serde[Any]) -> bytes:
        try:
            return serialized(text, serde)
        except Exception as error:
            raise Misuse(
                f"key {text!r} is no {serde.name} ({error}): write one, or show bytes"
            ) from error

    def _serdes(self) -> tuple[Serde[Any], Serde[Any]]:
        if self.question.raw:
            return serdes.BYTES, serdes.BYTES
        if self.pipeline is not None:
            try:
                found = load_pipeline(self.pipeline)
                return serdes_of(found, self.spec.name, self.environment.settings.application_id)
            except StateStoreError as error:
                self.notes.append(f"Not decoded by the pipeline: {error}")
        if self.known is None:
            return serdes.BYTES, serdes.BYTES
        windows = serdes.of_windowed(self.known.key_serde)
        keys = self.known.key_serde if windows is None else windows.inner
        try:
            return serdes.by_name(keys), serdes.by_name(self.known.value_serde)
        except Misuse as error:
            why = "; ".join([str(error), *self.notes])
            raise Misuse(f"{why}: {_WAYS_OUT}") from error


_WAYS_OUT = (
    "show bytes instead, or have the page import the pipeline that has it: by --pipeline of "
    "`statestore ui`, or import_pipelines = true under [page] of the applications file"
)


def _shown(data: bytes, serde: Serde[Any]) -> str:
    """The value as text, or its beginning; bytes that the serde refuses are shown as they are."""
    text = None
    if serde is not serdes.BYTES:
        with suppress(Exception, SystemExit):  # a serde may raise anything
            text = text_of(serde.deserialize(data))
    if text is None:
        text = serdes.printable(data)
    if len(text) <= _SHOWN_MAX:
        return text
    return f"{text[:_SHOWN_MAX]}… ({len(text):,} characters)"


def _time(at_ms: int | None) -> str:
    return "" if at_ms is None else time_text(at_ms)
