"""Calls into a client that overstay their own timeout, bounded from outside.

librdkafka 2.16's send_offsets_to_transaction waits for a lost group coordinator as long as the
outage lasts, whatever timeout it was given: no answer, or a look-up that fails again and again.
"""

import threading
from collections.abc import Callable

_GRACE_S = 2.0


class Overdue(Exception):
    """The call is still running, in a thread of its own that nobody waits for."""


def bounded(call: Callable[[], object], timeout_s: float) -> None:
    """Call; its own error if it raises; Overdue soon after the timeout it should keep by itself."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as failure:  # noqa: BLE001 - raised again by whoever waits
            failures.append(failure)

    # A daemon: the end of the process does not wait for it either.
    thread = threading.Thread(target=run, name="bounded client call", daemon=True)
    thread.start()
    thread.join(timeout_s + _GRACE_S)
    if thread.is_alive():
        raise Overdue
    if failures:
        raise failures[0]
