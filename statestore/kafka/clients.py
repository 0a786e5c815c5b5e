"""Kafka clients made from settings: what is tuned, what a user may change, what is fixed.

Defaults give way to the user's `consumer.*`, `producer.*` and `admin.*`; what correctness rests on
does not, and setting it is refused. The clients' own log goes to the logger `statestore.kafka`,
never to stderr: what matters is raised, once, as one clear error.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

import logging
from collections.abc import Callable, Mapping
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from statestore.errors import InvalidSetting, StateStoreError, Unavailable
from statestore.kafka.errors import translated
from statestore.settings import Settings

_log = logging.getLogger("statestore.kafka")
_log.addHandler(logging.NullHandler())

# A topic that is there or that the brokers make themselves; asking for another might create it.
TRANSACTION_LOG = "__transaction_state"

Properties = Mapping[str, str | int | float | bool]

_ALL: Properties = {
    # Refused connections alone are some twenty lines a second; what matters is raised anyway.
    "log_level": 2,
    # The first connection, to a bootstrap address, is given up for one to the broker behind it.
    "reconnect.backoff.ms": 10,
    # How long a topic nobody knows may yet appear.
    "topic.metadata.propagation.max.ms": 3_000,
}
# librdkafka's defaults starve a consumer that is faster than its queue: it then waits a second
# before the next fetch. Fetches stay small because they are counted compressed: ten times the
# bytes may lie in memory, and the first record comes the later.
_CONSUMER: Properties = {
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 65_536,
}
# Asked about a topic before it is made, the client believes for this long that there is none.
_ADMIN: Properties = {"topic.metadata.propagation.max.ms": 100}
_CONSUMER_FIXED: Properties = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
# Small enough to bound memory: a full queue makes the sender wait, nothing is lost.
_PRODUCER: Properties = {
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "linger.ms": 5,
    # A commit right after another is told to try again, and by default does so 100 ms later.
    "retry.backoff.ms": 10,
    # A lookup of the group's coordinator that failed thrice waits for any connection to change
    # before it is tried again: let idle ones change.
    "connections.max.idle.ms": 30_000,
    "compression.type": "lz4",
    "batch.size": 1_000_000,
}
# Nobody sees the records of a transaction before it commits, and a commit waits for no lingering.
_TRANSACTIONAL: Properties = {"linger.ms": 50}
_PRODUCER_FIXED: Properties = {"enable.idempotence": True}


_STATISTICS_MS = 1_000


# An authentication that a broker's end or a slow one cut short tells nothing of the password.
_CUT_SHORT = ("timed out", "disconnect", "connection closed")


class Trouble:
    """What a client last said about its connections: it says so aside, not to who waits."""

    def __init__(self) -> None:
        self._text = ""
        self._is_refusal = False

    def __call__(self, error: KafkaError) -> None:
        # That all are down says less than why one is.
        if not self._text or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._text = error.str()
            self._is_refusal = error.code() == KafkaError._AUTHENTICATION and not any(
                passing in self._text.lower() for passing in _CUT_SHORT
            )

    def failure(self, text: str) -> StateStoreError:
        """The error for who waited in vain: that user would be refused again, silence may pass."""
        if self._is_refusal:
            return InvalidSetting(
                f"{text}: the brokers refuse this user: correct sasl.username, sasl.password or "
                "sasl.mechanism"
            )
        return Unavailable(text)

    def __bool__(self) -> bool:
        return bool(self._text)

    def __str__(self) -> str:
        return f" ({self._text})" if self._text else ""


def consumer(
    settings: Settings,
    group_id: str,
    trouble: Trouble,
    *,
    stable: bool = True,
    on_statistics: Callable[[str], None] | None = None,
) -> Consumer:
    """A consumer that commits nothing by itself and sees committed records only.

    `stable` False: for who asks where a group stands now, whatever transaction may be open on it.
    `on_statistics` is called by the consumer's own calls, several times in the timeout of a
    request.
    """
    fixed = {**_CONSUMER_FIXED, "group.id": group_id}
    if not stable:
        fixed["isolation.level"] = "read_uncommitted"
    config = _config(settings, "consumer", _CONSUMER, fixed, trouble)
    if on_statistics is not None:
        config["stats_cb"] = on_statistics
        config["statistics.interval.ms"] = min(
            _STATISTICS_MS, max(1, settings.request_timeout_ms // 4)
        )
    try:
        return Consumer(config)
    except (KafkaException, ValueError, TypeError) as failure:
        raise translated(failure, "make a consumer") from failure


def producer(
    settings: Settings, extra: Properties, trouble: Trouble, batch_bytes: int | None = None
) -> Producer:
    """An idempotent producer; `extra` is fixed too.

    `batch_bytes`: more than that is not sent at once, unless it is one record.
    """
    patient = _TRANSACTIONAL if settings.exactly_once else {}
    defaults = {**_PRODUCER, **patient, "partitioner": settings.partitioner}
    fixed = {**_PRODUCER_FIXED, **extra}
    config = _config(settings, "producer", defaults, fixed, trouble)
    try:
        if batch_bytes is not None:
            config["batch.size"] = max(1, min(int(config["batch.size"]), batch_bytes))
        return Producer(config)
    except (KafkaException, ValueError, TypeError) as failure:
        raise translated(failure, "make a producer") from failure


def admin_client(settings: Settings, trouble: Trouble) -> AdminClient:
    """An administration client; it connects on first use."""
    config = _config(settings, "admin", _ADMIN, {}, trouble)
    try:
        return AdminClient(config)
    except (KafkaException, ValueError, TypeError) as failure:
        raise translated(failure, "make an admin client") from failure


def connect(client: Producer | AdminClient, timeout_s: float) -> list[int]:
    """Wait for a live connection that stays; the ids of the brokers known.

    Without one, some requests (of coordinators, leaders, the controller) fail inside the client,
    which repeats them seconds later. The first answer may still come over the connection to the
    bootstrap address, which is then given up: hence two.
    """
    client.list_topics(TRANSACTION_LOG, timeout_s)
    return sorted(client.list_topics(TRANSACTION_LOG, timeout_s).brokers)


def unanswered(
    settings: Settings, trouble: Trouble, doing: str, *, timeout_s: float | None = None
) -> StateStoreError:
    """The error for a call that ended with its timeout, by default that of the settings."""
    seconds = settings.request_timeout_ms / 1000 if timeout_s is None else timeout_s
    return trouble.failure(
        f"could not {doing}: {settings.bootstrap_servers} did not answer within {seconds:g} s"
        f"{trouble}: are the brokers up and reachable?"
    )


def _config(
    settings: Settings,
    role: Literal["consumer", "producer", "admin"],
    defaults: Properties,
    fixed: Properties,
    trouble: Trouble,
) -> dict[str, Any]:
    settings.require("bootstrap.servers")
    chosen = settings.client_config(role)
    for key in fixed:
        if key in chosen:
            raise InvalidSetting(
                f"{role}.{key} = {chosen[key]!r}: the guarantees rest on {fixed[key]!r}: "
                "drop the setting"
            )
    named = {"client.id": settings.application_id} if settings.application_id else {}
    return {**_ALL, **defaults, **named, **chosen, **fixed, "error_cb": trouble, "logger": _log}
