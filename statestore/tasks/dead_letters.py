"""Applies the exception handlers to what failed, and sends dead letters.

A record, something that waited in an operator, or a punctuation fails at a stage; the handler of
that stage decides (SEMANTICS E9). With `fail` the run ends. With `continue` it is passed over. With
`dead_letter` it is passed over too, and the same transaction writes a record to the dead letter
topic, with the headers of KIP-1034.
"""

import logging
import traceback
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from statestore.errors import RecordFailed, TopicMissing, one_line, raised_at
from statestore.model.ids import TaskId
from statestore.model.left_out import Cause, Fate
from statestore.model.modes import OnError
from statestore.model.records import Header
from statestore.ports import Outbox, Records
from statestore.settings import Settings
from statestore.topology.failures import NodeFailed, Stage

_log = logging.getLogger(__name__)
_TEXT_MAX = 8_000
_LINES = 10


class HandlerVerdict(NamedTuple):
    """Why something is passed over.

    `headers`: the headers of its dead letter; None: it gets no dead letter. `node`: where it
    failed; empty if that is not known. `time_ms`: the time of a failed punctuation.
    """

    reason: str
    headers: tuple[Header, ...] | None
    node: str
    time_ms: int = 0

    def causes(self) -> list[Cause]:
        """Return what to count once it is passed over."""
        fates = [Fate.DROPPED] if self.headers is None else [Fate.DROPPED, Fate.DEAD_LETTER]
        return [Cause(fate, self.node, self.reason) for fate in fates]


class DeadLetter(NamedTuple):
    """A record for the dead letter topic."""

    key: bytes | None
    value: bytes | None
    time_ms: int
    headers: tuple[Header, ...]


class DeadLetters:
    """The handlers of one stream task, and its access to the dead letter topic."""

    def __init__(self, task_id: TaskId, settings: Settings, outbox: Outbox) -> None:
        self._task_id = task_id
        self._outbox = outbox
        self._topic = settings.dead_letter_topic
        self._handlers = {
            Stage.DESERIALIZATION: settings.on_deserialization_error,
            Stage.PROCESSING: settings.on_processing_error,
            Stage.PRODUCTION: settings.on_production_error,
        }
        self._told = 0
        self._next_line = _LINES

    def verdict(
        self, what: str, place: Mapping[str, str], failed: NodeFailed, cause: Exception
    ) -> HandlerVerdict:
        """Return the handler's verdict on `what`, which failed at `place`; `fail` raises it."""
        handler = self._handlers[failed.stage]
        if handler is OnError.FAIL:
            raise failed.error(what, cause) from cause
        is_sent = handler is OnError.DEAD_LETTER
        done = f"goes to {self._topic}" if is_sent else "is passed over"
        self._tell(f"{what} {done}: {failed.place}: {failed.reason(cause)}", cause)
        headers = error_headers(cause, place) if is_sent else None
        return HandlerVerdict(failed.stage, headers, failed.node)

    def _tell(self, told: str, cause: Exception) -> None:
        """Log one line, unless many were logged: then only the 20th, the 40th, the 80th and so on.

        The traceback is in the dead letter and, for whoever wants it, in the debug log.
        """
        self._told += 1
        if self._told > self._next_line:
            self._next_line *= 2
        if self._told <= _LINES or self._told == self._next_line:
            line = one_line(" ".join(told.split()))
            more = ""
            if self._told >= _LINES:
                more = f" ({self._told} so far; the next line is the {2 * self._told}th)"
            _log.error("task %s: %s%s%s", self._task_id, line, raised_at(cause), more)
        _log.debug("task %s: %s", self._task_id, told, exc_info=cause)

    def send(self, what: str, letters: Sequence[DeadLetter]) -> None:
        """Add dead letters to the open transaction; an error of the topic names `what` failed.

        Kafka's client takes the time 0 for "now".
        """
        keys, values, times, headers = map(list, zip(*letters, strict=True))
        try:
            self._outbox.send(Records(self._topic, keys, values, times, headers=headers))
        except (RecordFailed, TopicMissing) as error:
            raise type(error)(f"{what}: {error}") from error


def error_headers(error: Exception, place: Mapping[str, str]) -> tuple[Header, ...]:
    """Return the error and the place where it occurred as headers `__streams.errors.<name>`."""
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    told = {
        "exception": f"{module}{kind.__qualname__}",
        "message": str(error)[:_TEXT_MAX],
        "stacktrace": "".join(traceback.format_exception(error))[-_TEXT_MAX:],
        **place,
    }
    return tuple(
        (f"__streams.errors.{name}", text.encode(errors="replace")) for name, text in told.items()
    )
