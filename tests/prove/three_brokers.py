"""Three real brokers of this machine, and what happens to them: kills, pauses, restarts, cuts.

Each is a controller too. Topics have three replicas, two of them in sync at least. Who leads what
is asked of the brokers by a client that runs do not use.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from time import monotonic

import psutil
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from statestore.testing.local_kafka import LocalKafka
from tests.builders import DEADLINE_S, eventually
from tests.kafka.fault_proxy import Action, Fault, FaultProxy, Of
from tests.kafka.wire import Request

BROKERS = 3
# What was killed is noticed in time, and changelogs are compacted while they grow.
_CONFIG = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
    "log.cleaner.backoff.ms": 200,
}
_IN_SYNC_S = 4 * DEADLINE_S
_ASK_MS = 10_000


@contextmanager
def three_brokers() -> Iterator["ThreeBrokers"]:
    """They begin and end with the thread that asks for them."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(FaultProxy()) for _ in range(BROKERS)]
        ports = [proxy.port for proxy in proxies]
        kafka = stack.enter_context(LocalKafka(BROKERS, config=_CONFIG, proxy_port=ports))
        for proxy, address in zip(proxies, kafka.behind_proxies, strict=True):
            proxy.lead_to(address)
        yield ThreeBrokers(kafka, tuple(proxies))


@dataclass(frozen=True)
class ThreeBrokers:
    """Says who leads what, and takes brokers away for a while.

    A broker that is back has to catch up: `await_in_sync` waits for it.
    """

    kafka: LocalKafka
    proxies: tuple[FaultProxy, ...]

    @property
    def proxied_servers(self) -> str:
        """The brokers for those whose way to one of them may be cut."""
        return ",".join(proxy.address for proxy in self.proxies)

    def leader(self, topic: str, partition: int) -> int:
        described = self._metadata().list_topics(topic, DEADLINE_S)
        return int(described.topics[topic].partitions[partition].leader)

    def coordinator(self, transactional_id: str) -> int:
        """The broker that decides the transactions of this id."""
        with closing(self._asking()) as admin:
            told = admin.describe_transactions([transactional_id])
        return int(told[transactional_id].coordinator_id)

    def controller(self) -> int:
        """The active one, which metadata do not tell: there, any broker is named."""
        with closing(self._asking()) as admin:
            quorum = admin.describe_metadata_quorum()
        return int(quorum["topics"][0]["partitions"][0]["leader_id"])

    @contextmanager
    def killed(self, broker: int) -> Iterator[None]:
        """Dead by SIGKILL inside `with`, and started on what it had written at the end of it."""
        self.kafka.kill_broker(broker)
        yield
        self.kafka.start_broker(broker)

    @contextmanager
    def stopped(self, broker: int) -> Iterator[None]:
        """Ended in order inside `with`, and started again at the end of it."""
        self.kafka.stop_broker(broker)
        yield
        self.kafka.start_broker(broker)

    @contextmanager
    def paused(self, broker: int) -> Iterator[None]:
        """Without an answer inside `with`, by SIGSTOP; after 3 s the others take over."""
        process = psutil.Process(self.kafka.pid(broker))
        process.suspend()
        try:
            yield
        finally:
            process.resume()

    @contextmanager
    def cut_one_way(self, broker: int, client_id: str, of: Of, for_s: float) -> Iterator[None]:
        """The client's requests do not reach the broker inside `with`, or its answers the client.

        That one way alone: all else goes on, and after so many seconds so does what was held up,
        unless its connection was given up.
        """
        end_s = monotonic() + for_s

        def plan(_request: Request) -> Fault | None:
            return Fault(Action.DELAY, of, end_s=end_s) if monotonic() < end_s else None

        self.proxies[broker].follow(client_id, plan)
        try:
            yield
        finally:
            self.proxies[broker].follow(client_id, None)

    def await_in_sync(self) -> None:
        """Wait until every partition has all of its replicas in sync."""
        admin = self._metadata()

        def whole() -> bool:
            try:
                topics = admin.list_topics(timeout=DEADLINE_S).topics.values()
            except KafkaException:
                return False
            every = [partition for topic in topics for partition in topic.partitions.values()]
            return all(
                partition.leader >= 0 and len(partition.isrs) == len(partition.replicas)
                for partition in every
            )

        eventually(whole, "all replicas are in sync", _IN_SYNC_S)

    def delete_of(self, prefix: str) -> None:
        """Delete the topics whose names begin so."""
        admin = self._metadata()
        found = [it for it in admin.list_topics(timeout=DEADLINE_S).topics if it.startswith(prefix)]
        for deleted in admin.delete_topics(found).values():
            deleted.result(DEADLINE_S)

    def _metadata(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0})

    def _asking(self) -> KafkaAdminClient:
        servers = self.kafka.bootstrap_servers.split(",")
        return KafkaAdminClient(bootstrap_servers=servers, request_timeout_ms=_ASK_MS)
