"""What an output of a batch program, such as Spark, needs of the brokers."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from statestore.runtime.brokers import KafkaBrokers
from statestore.settings import Settings

_kept: dict[tuple[int, str], KafkaBrokers] = {}
"""By process, because clients do not survive a fork, and by settings; used last comes last."""
_KEPT_MAX = 4


@contextmanager
def output_clients(settings: Settings) -> Iterator[KafkaBrokers]:
    """Give clients, which this process keeps for the next batch unless something fails.

    Spark uses its Python processes again and again, and connecting takes longer than a small batch.
    """
    place = os.getpid(), repr(sorted(settings.to_mapping().items()))
    clients = _kept.pop(place, None) or KafkaBrokers(settings)
    try:
        clients.forget_topics()
        yield clients
    except BaseException:
        clients.close()
        raise
    if _kept.setdefault(place, clients) is not clients:
        clients.close()
    with suppress(KeyError):  # another thread may have taken it
        of_process = [one for one in list(_kept) if one[0] == place[0]]
        for oldest in of_process[:-_KEPT_MAX]:
            _kept.pop(oldest).close()


def close_outputs() -> None:
    """Close the clients that this process keeps."""
    while _kept:
        _kept.popitem()[1].close()
