"""Creates Kafka clients from settings: their defaults, and the properties users cannot change.

The user's `consumer.*`, `producer.*` and `admin.*` override the defaults. Properties on which
correctness depends are fixed, and setting them is refused. The clients' log goes to the logger
`statestore.kafka`, never to stderr: what matters is raised once, as an error.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

import logging
from collections.abc import Callable, Mapping
from functools import cache
from time import monotonic
from typing import Any, Literal

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from statestore.errors import InvalidSetting, StateStoreError, Unavailable
from statestore.kafka.error_codes import (
    REFUSED_USER,
    UNTRUSTED_BROKER,
    UNTRUSTED_CLIENT,
    is_unanswered,
    run_callbacks,
    translated,
)
from statestore.kafka.token_endpoint import CREDENTIALS, ENDPOINT_REFUSALS
from statestore.kafka.tokens import REFUSED_BEARER, no_token
from statestore.settings import Settings

_log = logging.getLogger("statestore.kafka")
_log.addHandler(logging.NullHandler())

# This topic exists or the brokers create it themselves; asking for another might create that one.
TRANSACTION_LOG = "__transaction_state"

Properties = Mapping[str, str | int | float | bool]

_ALL: Properties = {
    # Refused connections alone log about twenty lines a second; what matters is raised anyway.
    "log_level": 2,
    # The first connection, to a bootstrap address, is replaced by one to the broker behind it.
    "reconnect.backoff.ms": 10,
    # How long an unknown topic may still appear.
    "topic.metadata.propagation.max.ms": 3_000,
}
# With librdkafka's defaults a consumer that empties its queue waits a second for the next fetch.
# Fetches stay small because they are counted compressed: they may take ten times the memory, and
# larger ones delay the first record.
_CONSUMER: Properties = {
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 10,
    "queued.min.messages": 200_000,
    "queued.max.messages.kbytes": 65_536,
}
# A client that asked about a topic before it was created believes for this long that it is missing.
_ADMIN: Properties = {"topic.metadata.propagation.max.ms": 100}
_CONSUMER_FIXED: Properties = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}
# The queue is small enough to limit memory: if it is full, the sender waits and loses nothing.
_PRODUCER: Properties = {
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "linger.ms": 5,
    # The broker asks a commit right after another one to retry, which by default takes 100 ms.
    "retry.backoff.ms": 10,
    # A lookup of the group's coordinator that failed three times is repeated only when a
    # connection changes its state, so idle connections are closed soon.
    "connections.max.idle.ms": 30_000,
    "compression.type": "lz4",
    "batch.size": 1_000_000,
}
# The records of a transaction are not visible before it commits, and a commit ends the lingering.
_TRANSACTIONAL: Properties = {"linger.ms": 50}
_PRODUCER_FIXED: Properties = {"enable.idempotence": True}


_STATISTICS_MS = 1_000
_FIRST_PATIENCE_S = 0.25


_UNACQUIRED = "failed to acquire sasl oauthbearer token"
# A broker that stopped or was slow during an authentication has not refused the password.
_CUT_SHORT = ("timed out", "disconnect", "connection closed")
# What both sides of TLS say if they do not trust a certificate, in librdkafka's texts.
_DISTRUST = ("certificate verify failed", "alert")
_CERTIFICATES = ("certificate", "unknown ca")


class Trouble:
    """The last connection error of a client.

    The client reports these errors through a callback, not to the call that waits for an answer.
    """

    def __init__(self) -> None:
        self._text = ""
        self._refusal = ""

    def __call__(self, error: KafkaError) -> None:
        # Why one broker is down says more than that all are.
        if not self._text or error.code() != KafkaError._ALL_BROKERS_DOWN:
            self._text = error.str()
            self._refusal = _refusal(error)

    @property
    def is_refusal(self) -> bool:
        """Whether the settings are at fault, so that another attempt would not help."""
        return bool(self._refusal)

    def failure(self, doing: str, silence: str) -> StateStoreError:
        """Return the error for a call without an answer: InvalidSetting for refused settings.

        Unavailable otherwise, because the next attempt may succeed. `silence` says who did not
        answer for how long.
        """
        if self._refusal:
            return InvalidSetting(f"could not {doing}{self}: {self._refusal}")
        return Unavailable(f"could not {doing}: {silence}{self}: are the brokers up and reachable?")

    def __bool__(self) -> bool:
        return bool(self._text)

    def __str__(self) -> str:
        return f" ({self._text})" if self._text else ""


def _refusal(error: KafkaError) -> str:
    """Return what is refused and the way out; nothing if another attempt may succeed."""
    text = error.str().lower()
    if error.code() == KafkaError._AUTHENTICATION and not any(it in text for it in _CUT_SHORT):
        if _UNACQUIRED in text:
            is_refused = any(it in text for it in ENDPOINT_REFUSALS)
            return f"the token endpoint refuses this client: {CREDENTIALS}" if is_refused else ""
        way_out = REFUSED_BEARER if "invalid_token" in text else REFUSED_USER
        return f"the brokers refuse this user: {way_out}"
    if any(it in text for it in _DISTRUST) and any(it in text for it in _CERTIFICATES):
        if "verify failed" in text:
            return UNTRUSTED_BROKER
        return UNTRUSTED_CLIENT
    return ""


def consumer(
    settings: Settings,
    group_id: str,
    trouble: Trouble,
    *,
    stable: bool = True,
    on_statistics: Callable[[str], None] | None = None,
) -> Consumer:
    """Create a consumer that commits nothing by itself and reads committed records only.

    With `stable` False it reads a group's offsets without waiting for open transactions.
    `on_statistics` is called from the consumer's calls, several times within the timeout of a
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
        raise translated(failure, "create a consumer") from failure


def check_consumer(settings: Settings) -> None:
    """Raise InvalidSetting for a property of consumers that users cannot change."""
    _check_fixed("consumer", settings.client_config("consumer"), _CONSUMER_FIXED)


def producer(
    settings: Settings, extra: Properties, trouble: Trouble, batch_bytes: int | None = None
) -> Producer:
    """Create an idempotent producer; users cannot change the properties in `extra` either.

    A request has at most `batch_bytes` of records, unless a single record is larger.
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
        raise translated(failure, "create a producer") from failure


def admin_client(settings: Settings, trouble: Trouble) -> AdminClient:
    """Create an admin client; it connects on first use."""
    config = _config(settings, "admin", _ADMIN, {}, trouble)
    try:
        return AdminClient(config)
    except (KafkaException, ValueError, TypeError) as failure:
        raise translated(failure, "create an admin client") from failure


def connect(client: Producer | AdminClient, timeout_s: float, trouble: Trouble) -> list[int]:
    """Wait for a lasting connection and return the ids of the known brokers.

    Without one, some requests (to coordinators, leaders, the controller) fail inside the client,
    which repeats them seconds later. Two requests are made, because the first answer may come over
    the connection to the bootstrap address, which is then closed. A refusal of the settings, which
    the client reports to `trouble`, is not waited for any longer.
    """
    _metadata(client, timeout_s, trouble)
    return sorted(_metadata(client, timeout_s, trouble).brokers)


def _metadata(client: Producer | AdminClient, timeout_s: float, trouble: Trouble) -> Any:
    """Ask again and again, and for longer each time, as the client tells of refusals in between.

    The last request has half of the time at least, for brokers that are slow.
    """
    until_s, patience_s = monotonic() + timeout_s, _FIRST_PATIENCE_S
    while True:
        left_s = max(until_s - monotonic(), 0.001)
        is_last = left_s <= 2 * patience_s
        try:
            return client.list_topics(TRANSACTION_LOG, left_s if is_last else patience_s)
        except KafkaException as failure:
            if is_last or not is_unanswered(failure):
                raise
            run_callbacks(client)
            if trouble.is_refusal:
                raise
        patience_s *= 2


def unanswered(
    settings: Settings, trouble: Trouble, doing: str, *, since_s: float
) -> StateStoreError:
    """Return the error for a call that began at `since_s` and was not answered until now.

    A client may give up long before its time, when a connection breaks.
    """
    if (missing := no_token(settings.client_config("admin"), f"could not {doing}")) is not None:
        return missing
    return trouble.failure(
        doing, f"{settings.bootstrap_servers} did not answer for {waited(since_s)}"
    )


def waited(since_s: float) -> str:
    """Return how long ago that was, for a message."""
    return f"{round(monotonic() - since_s, 1):g} s"


@cache
def tell_unused(why: str) -> None:
    """Log, once in a process, that librdkafka does the work of our own client."""
    _log.warning(
        "kafka.client=wire is not used, librdkafka is: %s; set kafka.client=librdkafka if that is "
        "what you want",
        why,
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
    _check_fixed(role, chosen, fixed)
    named = {"client.id": settings.application_id} if settings.application_id else {}
    return {**_ALL, **defaults, **named, **chosen, **fixed, "error_cb": trouble, "logger": _log}


def _check_fixed(role: str, chosen: Mapping[str, str], fixed: Properties) -> None:
    for key in fixed:
        if key in chosen:
            raise InvalidSetting(
                f"{role}.{key} = {chosen[key]!r}: the guarantees depend on {fixed[key]!r}: "
                "remove the setting"
            )
