"""A time limit for calls into a client that exceed their own timeout.

librdkafka 2.16's send_offsets_to_transaction waits for a lost group coordinator as long as the
outage lasts, whatever its timeout: if there is no answer, or if a look-up fails repeatedly.
"""

import threading
from collections.abc import Callable

_GRACE_S = 2.0


class Overdue(Exception):
    """The call is still running, in a separate thread that nothing waits for."""


def bounded(
    call: Callable[[], object], timeout_s: float, *, when_overdue_ends: Callable[[], object]
) -> None:
    """Run `call` and raise its error if it fails.

    Overdue if it is still running shortly after `timeout_s`, which it should observe itself. Then
    its thread runs `when_overdue_ends` once the call has ended.
    """
    failures: list[BaseException] = []
    turn = threading.Lock()
    has_ended, is_overdue = threading.Event(), threading.Event()

    def run() -> None:
        try:
            call()
        except BaseException as failure:  # noqa: BLE001 - raised again in the calling thread
            failures.append(failure)
        with turn:
            has_ended.set()
        if is_overdue.is_set():
            when_overdue_ends()

    # The end of the process does not wait for a daemon thread either.
    threading.Thread(target=run, name="bounded client call", daemon=True).start()
    has_ended.wait(timeout_s + _GRACE_S)
    with turn:
        if not has_ended.is_set():
            is_overdue.set()
            raise Overdue
    if failures:
        raise failures[0]
