"""Reads the input partitions of a stream task over our own connections: committed records only.

While the caller works on what a poll returned, each broker has the next fetch. A source has no
thread of its own and is used by one thread: what a broker sends waits in the socket until the next
poll. No more is fetched of a partition than one answer beyond the one that is returned from.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from time import monotonic

from statestore.errors import InvalidSetting, Unavailable
from statestore.kafka.clients import check_consumer
from statestore.kafka.wire.cluster import ClusterMap
from statestore.kafka.wire.fetched import FetchedRows
from statestore.kafka.wire.fetching import Fetcher, FetchLimits, PartitionLog
from statestore.kafka.wire.security import Security
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.model.texts import whole_number
from statestore.ports import Arrival
from statestore.settings import SECURITY_PREFIXES, Settings

# About how many bytes of keys, values and headers one poll returns.
_BATCH_BYTES = 64 << 20
# With so many offsets before the end of its log a partition is far behind.
_FAR = 1000

# Within so long a caller that was told what to wait for polls or asks again.
_LISTENS_S = 2.0
# How long a broker waits at most where nothing comes, unless a setting says for how long it waits.
_REST_MS = 5000

# Properties of consumers that are used, here and by the cluster map, and librdkafka's defaults.
_WAIT, _MIN_BYTES, _MAX_BYTES = "fetch.wait.max.ms", "fetch.min.bytes", "fetch.max.bytes"
_PARTITION_BYTES = ("max.partition.fetch.bytes", "fetch.message.max.bytes")
_CHECK_CRC = "check.crcs"
_USED = frozenset(
    {_WAIT, _MIN_BYTES, _MAX_BYTES, *_PARTITION_BYTES, _CHECK_CRC, "bootstrap.servers", "client.id"}
)
# These tune what only librdkafka has: its queues, threads, timers, log and group membership.
_MOOT = frozenset(
    {
        "allow.auto.create.topics",
        "fetch.error.backoff.ms",
        "fetch.queue.backoff.ms",
        "heartbeat.interval.ms",
        "log_level",
        "max.poll.interval.ms",
        "message.max.bytes",
        "metadata.max.age.ms",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "session.timeout.ms",
        "socket.timeout.ms",
        "statistics.interval.ms",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.interval.ms",
    }
)
_TRUE, _FALSE = {"true", "t", "1"}, {"false", "f", "0"}


def not_taken(settings: Settings) -> list[str]:
    """Return the consumer's properties that this client does not know, and librdkafka may.

    Among them is `client.rack`: this client reads from leaders only.
    """
    config = settings.client_config("consumer")
    unknown = [
        key for key in config if key not in _USED | _MOOT and not key.startswith(SECURITY_PREFIXES)
    ]
    return sorted({*(f"consumer.{key}" for key in unknown), *Security.not_taken(config)})


class WireSource:
    """`ports.Source` on a real broker, without librdkafka.

    If the log no longer has an offset, or is another one, `poll` raises InputLost once it has
    returned all that came before: input was lost, and continuing would hide that.
    """

    def __init__(self, settings: Settings, cluster: ClusterMap) -> None:
        """Connect to nobody yet; `cluster` may be shared and outlives the source."""
        check_consumer(settings)
        self._settings = settings
        self._limits = _limits(settings.client_config("consumer"))
        self._fetcher = Fetcher(cluster, self._limits)
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._turns: deque[PartitionLog] = deque()
        self._polled_s = 0.0
        self._is_listening = False
        self._silence: Unavailable | None = None

    def start(self, positions: Mapping[TopicPartition, int]) -> None:
        """Start reading from these offsets; a second call drops what was fetched before.

        The first poll asks the brokers: who never polls costs no connection.
        """
        self._fetcher.restart()
        check_crc = self._limits.check_crc
        self._logs = {tp: PartitionLog(tp, at, check_crc=check_crc) for tp, at in positions.items()}
        self._turns = deque(self._logs.values())
        self._polled_s = monotonic()
        self._silence = None

    def poll(self, max_records: int, timeout_ms: int, *, soon: bool = False) -> list[Batch]:
        """Return what has arrived; wait only for the first records, not for `max_records`.

        See `ports.Source`.
        """
        assert self._turns, "start comes before poll"
        deadline_s = monotonic() + timeout_ms / 1000
        self._leave_out_absence()
        silence, self._silence = self._silence, None
        if silence is not None:
            raise silence
        rows: dict[TopicPartition, FetchedRows] = {}
        room, bytes_left, news, heard = max_records, _BATCH_BYTES, False, False
        while True:
            next_try_s = self._fetcher.send(self._turns)
            news |= any(log.fetched and not log.is_paused for log in self._turns)
            room, bytes_left = self._take(rows, room, bytes_left)
            if room <= 0 or bytes_left <= 0 or self._raise_failure(rows):
                break
            if news and self._is_enough(rows, soon=soon):
                break
            if heard and monotonic() >= deadline_s:
                break
            news |= self._fetcher.receive(min(deadline_s, next_try_s))
            heard = True
        if (silence := self._check_alive()) is not None:
            if not rows:
                raise silence
            self._silence = silence
        return [found.batch(tp) for tp, found in rows.items()]

    def arrival(self) -> Arrival:
        """See `ports.Source`: the brokers are asked, and their sockets tell when they answer."""
        self._leave_out_absence()
        self._polled_s, self._is_listening = monotonic(), True
        next_try_s = self._fetcher.send(self._turns)
        if self._silence is not None or any(map(_is_ready, self._turns)):
            return Arrival((), 0.0)
        return self._fetcher.arrival(next_try_s)

    def position(self, tp: TopicPartition) -> int:
        """Return the offset after the last record returned for `tp` and any control records."""
        return self._logs[tp].position

    def at_end(self, tp: TopicPartition) -> bool:
        """Return whether the position was at the end of the log of `tp` when last reported."""
        return self._logs[tp].at_end()

    def log_end(self, tp: TopicPartition) -> int | None:
        """Return the last reported stable offset of `tp`, None if none was reported."""
        end = self._logs[tp].log_end
        return None if end < 0 else end

    def pause(self, tps: Sequence[TopicPartition]) -> None:
        """Leave these partitions out of polls and fetches; what was fetched of them is kept."""
        for tp in tps:
            self._logs[tp].is_paused = True

    def resume(self, tps: Sequence[TopicPartition]) -> None:
        """Include these partitions in polls again; pausing them before the next poll is free."""
        for tp in tps:
            self._logs[tp].is_paused = False

    def close(self) -> None:
        """Stop fetching. Closing twice is harmless."""
        self._fetcher.close()

    def _take(
        self, rows: dict[TopicPartition, FetchedRows], room: int, bytes_left: int
    ) -> tuple[int, int]:
        """Move what was fetched into `rows`, in turns; return how many and how much still fit.

        Who had the last turn begins behind the others with the next poll.
        """
        idle = 0
        while room > 0 and bytes_left > 0 and idle < len(self._turns):
            log = self._turns[0]
            self._turns.rotate(-1)
            if log.is_paused or not log.fetched:
                idle += 1
                continue
            idle = 0
            taken = log.take(room, bytes_left)
            if taken is not None and taken.stop > taken.start:
                if log.tp not in rows:
                    rows[log.tp] = log.fetched.rows()
                rows[log.tp].add(taken)
                room -= taken.stop - taken.start
                bytes_left -= taken.size_bytes
        return room, bytes_left

    def _raise_failure(self, rows: Mapping[TopicPartition, FetchedRows]) -> bool:
        """Raise why a partition cannot be read on; True if records have to be returned first."""
        for log in self._turns:
            if log.failure is not None and not log.is_paused and not log.fetched:
                if rows:
                    return True
                raise log.failure
        return False

    def _is_enough(self, rows: Mapping[TopicPartition, FetchedRows], *, soon: bool) -> bool:
        """Return whether a poll that has news may end before its time."""
        read = [log for log in self._turns if not log.is_paused]
        if all(log.at_end() for log in read):
            return True
        return soon and bool(rows) and all(log.log_end - log.position <= _FAR for log in read)

    def _leave_out_absence(self) -> None:
        """Count only the time of polls as silence, and that from `arrival` to a poll."""
        absence_s = monotonic() - self._polled_s
        if self._is_listening:
            # Who listens looks again soon; if it took longer, the caller had other work.
            absence_s = max(absence_s - _LISTENS_S, 0.0)
        self._is_listening = False
        self._fetcher.leave_out(absence_s)
        for log in self._logs.values():
            log.heard_s += absence_s

    def _check_alive(self) -> Unavailable | None:
        """Return an error if brokers said nothing of a partition whose end is not reached."""
        now_s = self._polled_s = monotonic()
        silent: list[PartitionLog] = []
        for log in self._turns:
            if log.is_paused or log.fetched or log.at_end():
                log.heard_s = now_s
            elif now_s - log.heard_s > self._settings.request_timeout_ms / 1000:
                silent.append(log)
        if not silent:
            return None
        silent_s = now_s - min(log.heard_s for log in silent)
        trouble = f" ({self._fetcher.trouble})" if self._fetcher.trouble else ""
        return Unavailable(
            f"{self._settings.bootstrap_servers} sent nothing about "
            f"{', '.join(str(log.tp) for log in silent)} for {round(silent_s, 1):g} s{trouble}: "
            "are the brokers up?"
        )


def _is_ready(log: PartitionLog) -> bool:
    """Return whether a poll has something to return or to raise without asking a broker."""
    return not log.is_paused and (bool(log.fetched) or log.failure is not None)


def _limits(config: Mapping[str, str]) -> FetchLimits:
    partition_bytes = next((key for key in _PARTITION_BYTES if key in config), _PARTITION_BYTES[0])
    wait_ms = _whole(config, _WAIT, 500, least=0)
    return FetchLimits(
        bytes_max=_whole(config, _MAX_BYTES, 50 << 20, least=1),
        partition_bytes_max=_whole(config, partition_bytes, 1 << 20, least=1),
        bytes_min=_whole(config, _MIN_BYTES, 1, least=1),
        wait_ms=wait_ms,
        # What is below the least number of bytes waits for as long.
        rest_ms=wait_ms if _WAIT in config or _MIN_BYTES in config else _REST_MS,
        check_crc=_flag(config, _CHECK_CRC, default=True),
    )


def _whole(config: Mapping[str, str], key: str, default: int, *, least: int) -> int:
    text = config.get(key, str(default)).strip()
    number = whole_number(text)
    if number is None or not least <= number < 1 << 31:
        raise InvalidSetting(f"consumer.{key} = {text!r:.99}: want a whole number from {least} on")
    return number


def _flag(config: Mapping[str, str], key: str, *, default: bool) -> bool:
    text = config.get(key, str(default)).strip().lower()
    if text not in _TRUE | _FALSE:
        raise InvalidSetting(f"consumer.{key} = {text!r}: want true or false")
    return text in _TRUE
