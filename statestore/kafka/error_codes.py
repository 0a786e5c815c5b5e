"""Translation of Kafka's error codes into StateStoreErrors, for all clients.

The code decides the class, and the class tells the caller what to do next. A code that is not in
the table may be transient and becomes `Unavailable`. The table has only codes that mean the same
in every call: an offset out of range, for example, means something else for a task's input than
for a store's changelog, so those callers translate it themselves.
"""

# ruff: noqa: SLF001 - librdkafka's local codes are public, underscored by convention

from contextlib import suppress
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from statestore.errors import (
    BrokerTooOld,
    Fenced,
    InvalidSetting,
    Misuse,
    RecordFailed,
    StateStoreError,
    TopicMissing,
    Unavailable,
)

# What to do about a refusal that no code tells apart; both clients say it.
REFUSED_USER = "correct sasl.username, sasl.password or sasl.mechanism"
UNTRUSTED_BROKER = (
    "the certificate of the broker is not trusted: correct ssl.ca.location, or "
    "ssl.endpoint.identification.algorithm if the name differs"
)
UNTRUSTED_CLIENT = (
    "the broker does not take the certificate of this client: correct ssl.certificate.location and "
    "ssl.key.location"
)


class _Meaning(NamedTuple):
    kind: type[StateStoreError]
    way_out: str
    codes: tuple[int, ...]


_MEANINGS = (
    _Meaning(
        Fenced,
        "a newer owner opened the same transactional id, or the transaction outlived "
        "transaction.timeout.ms",
        (
            KafkaError._FENCED,
            KafkaError.PRODUCER_FENCED,
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.INVALID_PRODUCER_ID_MAPPING,
            KafkaError.TRANSACTION_COORDINATOR_FENCED,
        ),
    ),
    _Meaning(
        RecordFailed,
        "the same record would fail again: change the record or the topic's limits, "
        "then start again",
        (
            KafkaError.MSG_SIZE_TOO_LARGE,
            KafkaError.RECORD_LIST_TOO_LARGE,
            KafkaError.INVALID_RECORD,
            # A valid record that was sent together with an invalid one.
            KafkaError._INVALID_DIFFERENT_RECORD,
        ),
    ),
    _Meaning(
        RecordFailed,
        "the record's time is further from the broker's clock than the topic allows: raise its "
        "message.timestamp.after.max.ms (times ahead) or message.timestamp.before.max.ms, then "
        "start again",
        (KafkaError.INVALID_TIMESTAMP,),
    ),
    _Meaning(
        TopicMissing,
        "create the topic or correct its name and partition count",
        (
            KafkaError.UNKNOWN_TOPIC_OR_PART,
            KafkaError._UNKNOWN_TOPIC,
            KafkaError._UNKNOWN_PARTITION,
        ),
    ),
    _Meaning(
        BrokerTooOld,
        "upgrade the brokers to Kafka 4.0 or newer",
        (KafkaError.UNSUPPORTED_VERSION, KafkaError._UNSUPPORTED_FEATURE),
    ),
    _Meaning(
        InvalidSetting,
        "correct the client settings (consumer.*, producer.*, admin.*, sasl.*, ssl.*)",
        (
            KafkaError._INVALID_ARG,
            KafkaError._AUTHENTICATION,
            KafkaError._SSL,
            KafkaError.SASL_AUTHENTICATION_FAILED,
            KafkaError.UNSUPPORTED_SASL_MECHANISM,
        ),
    ),
    _Meaning(
        InvalidSetting,
        "lower transaction.timeout.ms, or raise the brokers' transaction.max.timeout.ms",
        (KafkaError.INVALID_TRANSACTION_TIMEOUT,),
    ),
    _Meaning(
        Misuse,
        "the brokers' ACLs do not allow this user to do it: the runbook lists what an application "
        'needs, "What an application may do on the brokers"',
        (
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ),
    _Meaning(
        Misuse,
        "the brokers would refuse the same request again: correct what the message names",
        (
            KafkaError.TOPIC_ALREADY_EXISTS,
            KafkaError.TOPIC_EXCEPTION,
            KafkaError.INVALID_CONFIG,
            KafkaError.INVALID_PARTITIONS,
            KafkaError.INVALID_REPLICATION_FACTOR,
            KafkaError.INVALID_REPLICA_ASSIGNMENT,
            KafkaError.INVALID_REQUEST,
            KafkaError.POLICY_VIOLATION,
            KafkaError.OFFSET_METADATA_TOO_LARGE,
        ),
    ),
)
# Right after brokers have started, the controller takes them for absent. It answers with the code
# of a replication factor that no cluster of this size can have; only the text tells which it is.
_NO_BROKER_YET = "brokers are currently fenced"
_BY_CODE = {code: meaning for meaning in _MEANINGS for code in meaning.codes}
_OTHERWISE = _Meaning(Unavailable, "are the brokers up and reachable?", ())

# A broker is starting, or a partition or coordinator is moving: a retry will succeed soon.
_TRANSIENT = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._WAIT_COORD,
    }
)
_NO_ANSWER = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._TIMED_OUT_QUEUE})


def run_callbacks(client: Producer | AdminClient) -> None:
    """Run the callbacks of a client whose call failed, so that they report the cause.

    After a fatal error the producer raises it again, which is ignored: the failed call raised it.
    """
    with suppress(KafkaException):
        client.poll(0)


def kafka_error(failure: BaseException | None) -> KafkaError | None:
    """Return the broker's or client's error in an exception, None if it has none."""
    error = failure.args[0] if isinstance(failure, KafkaException) and failure.args else None
    return error if isinstance(error, KafkaError) else None


def error_for(error: KafkaError, doing: str) -> StateStoreError:
    """Return the StateStoreError for `error`; `doing` tells in the message what failed."""
    meaning = _OTHERWISE if _is_too_soon(error) else _BY_CODE.get(error.code(), _OTHERWISE)
    return meaning.kind(f"could not {doing}: {error.str()} ({error.name()}): {meaning.way_out}")


def translated(failure: Exception, doing: str) -> StateStoreError:
    """Return the StateStoreError for a client's exception; `doing` tells what failed."""
    error = kafka_error(failure)
    if error is not None:
        return error_for(error, doing)
    # Without a code, the client itself has refused an argument.
    return Misuse(f"could not {doing}: {failure}")


def is_transient(failure: BaseException | None) -> bool:
    """Return whether the same request may succeed soon."""
    error = kafka_error(failure)
    if error is None:
        return False
    return error.retriable() or error.code() in _TRANSIENT or _is_too_soon(error)


def is_unanswered(failure: BaseException | None) -> bool:
    """Return whether the request got no answer."""
    error = kafka_error(failure)
    return error is not None and error.code() in _NO_ANSWER


def _is_too_soon(error: KafkaError) -> bool:
    """Return whether the controller knows brokers, but none that is ready to have a partition."""
    wrong_factor = error.code() == KafkaError.INVALID_REPLICATION_FACTOR
    return wrong_factor and _NO_BROKER_YET in error.str()
