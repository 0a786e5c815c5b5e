"""A time limit for calls into a client that exceed their own timeout.

librdkafka 2.16's send_offsets_to_transaction waits for a lost group coordinator as long as the
outage lasts, whatever its timeout: if there is no answer, or if a look-up fails repeatedly.
"""

import threading
from collections.abc import Callable

_GRACE_S = 2.0


class Overdue(Exception):
    """The call is still running, in a separate thread that nothing waits for."""


def bounded(call: Callable[[], object], timeout_s: float) -> None:
    """Run `call` and raise its error if it fails.

    Overdue if it is still running shortly after `timeout_s`, which it should observe itself.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as failure:  # noqa: BLE001 - raised again in the calling thread
            failures.append(failure)

    # The end of the process does not wait for a daemon thread either.
    thread = threading.Thread(target=run, name="bounded client call", daemon=True)
    thread.start()
    thread.join(timeout_s + _GRACE_S)
    if thread.is_alive():
        raise Overdue
    if failures:
        raise failures[0]
