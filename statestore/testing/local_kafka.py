"""LocalKafka: a real Kafka cluster as child processes, for tests and benchmarks.

It needs Java 17 and, once, Maven, but no Docker. It ends with the process that made it, even if
that process is killed with SIGKILL (on Linux with setpriv). It leaves no files but the jars; the
next LocalKafka removes what a killed process left.
"""

import shutil
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Self

import filelock
import psutil

from statestore.errors import Misuse, Unavailable
from statestore.kafka.testing import TopicPlan, admin, create_topics
from statestore.testing.kafka_jars import kafka_libs, scratch_dir
from statestore.testing.kafka_node import (
    HOST,
    BrokerConfig,
    Detour,
    KafkaNode,
    Lifetime,
    Sasl,
    Tls,
    await_ready,
    end,
    launch,
    new_cluster_id,
    prepare,
    reserved_ports,
)

_READY_MS = 60_000
_TOPIC_MS = 30_000
_STOP_S = 30.0
_LOCK_S = 60


class LocalKafka:
    """A cluster of `brokers` nodes, which is ready inside `with` and gone after it.

    `config` is merged into every broker's properties. With `data_dir` the topics stay in that
    folder, and a later LocalKafka of as many brokers goes on with them, on other ports. Enter it in
    a thread that lives as long as the cluster. Brokers are counted from 0.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        config: BrokerConfig | None = None,
        data_dir: Path | str | None = None,
        proxy_port: int | Sequence[int] | None = None,
        users: Mapping[str, str] | None = None,
        tls_certificate: Path | str | None = None,
        tls_key: Path | str | None = None,
        ready_timeout_ms: int = _READY_MS,
    ) -> None:
        """`proxy_port` is the port of a proxy that leads to `behind_proxy`, or one for each broker.

        `users` are passwords by name, which `sasl_servers` asks for by SASL's PLAIN or SCRAM (for
        SCRAM, those of the first start over a `data_dir`). With `tls_certificate` and `tls_key`,
        files in PEM format, they come over TLS (SASL_SSL); the key is one in PKCS #8 without a
        password, and the certificate is for 127.0.0.1. `config` says what users may do
        (`authorizer.class.name`, `super.users`). Clients of `bootstrap_servers` are
        User:ANONYMOUS, without TLS.
        """
        if brokers < 1:
            raise Misuse(f"a cluster needs at least one broker, not {brokers}")
        proxies = [proxy_port] if isinstance(proxy_port, int) else list(proxy_port or ())
        if proxies and len(proxies) != brokers:
            raise Misuse(
                f"a proxy leads to one broker: pass a proxy_port for each of the {brokers}, or none"
            )
        self._proxies = proxies
        if (tls_certificate is None) != (tls_key is None):
            raise Misuse("a certificate needs its key: pass both tls_certificate and tls_key")
        if tls_certificate is not None and not users:
            raise Misuse("only those who name a password come over TLS: pass users too")
        self._users = users
        self._tls = None
        if tls_certificate is not None and tls_key is not None:
            self._tls = Tls(Path(tls_certificate), Path(tls_key))
        self._count = brokers
        self._config = dict(config or {})
        self._data_dir = None if data_dir is None else Path(data_dir).resolve()
        self._ready_timeout_ms = ready_timeout_ms
        self._nodes: tuple[KafkaNode, ...] = ()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        assert not self._nodes, "a LocalKafka is entered once at a time"
        with ExitStack() as stack:
            self._start(stack)
            self._cleanup = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._cleanup.close()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, stopped ones too, in the form that clients take."""
        self._check_entered()
        return ",".join(node.address for node in self._nodes)

    @property
    def sasl_servers(self) -> str:
        """The addresses of all brokers, for clients that name a user and a password."""
        self._check_entered()
        ports = [node.sasl.port for node in self._nodes if node.sasl is not None]
        if not ports:
            raise Misuse("nobody is asked for a password: pass users")
        return ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def behind_proxy(self) -> tuple[str, int]:
        """The address that the proxy connects to; clients that come through it stay on it."""
        return self.behind_proxies[0]

    @property
    def behind_proxies(self) -> list[tuple[str, int]]:
        """The address that the proxy of each broker connects to, by broker."""
        self._check_entered()
        detours = [node.detour for node in self._nodes if node.detour is not None]
        if not detours:
            raise Misuse("no proxy was asked for: pass proxy_port")
        return [(HOST, detour.port) for detour in detours]

    def create_topic(
        self, name: str, partitions: int = 4, config: Mapping[str, object] | None = None
    ) -> None:
        """Create a topic and return when every partition has a leader."""
        plan = TopicPlan(
            name, partitions, config={key: str(it) for key, it in (config or {}).items()}
        )
        create_topics(admin(self.bootstrap_servers), [plan], timeout_ms=_TOPIC_MS)

    def stop_broker(self, index: int) -> None:
        """Stop one broker in order, so that it hands over its leaderships and closes its logs.

        Unavailable if it does not stop in time, and is killed.
        """
        if not end([self._running(index)], grace_s=_STOP_S):
            raise Unavailable(
                f"broker {index} did not stop within {_STOP_S:g} s and was killed; "
                f"the end of its log:\n{self._nodes[index].log_tail()}"
            )
        self._processes.pop(index).wait()

    def kill_broker(self, index: int) -> None:
        """Kill one broker with SIGKILL; what it had not synced yet stays in the page cache."""
        end([self._running(index)], grace_s=0)
        self._processes.pop(index).wait()

    def start_broker(self, index: int) -> None:
        """Start a stopped or killed broker on its old port and data, and wait until it is ready.

        After a kill this takes 3 s at least, as the old session has to expire first. Misuse if it
        runs already.
        """
        node = self._node(index)
        process = self._processes.get(index)
        if process is not None and process.poll() is None:
            raise Misuse(f"broker {index} runs already")
        self._processes[index] = launch(node, Lifetime.PARENT)
        await_ready(node, self._processes[index], timeout_ms=self._ready_timeout_ms)

    def pid(self, index: int = 0) -> int:
        """The process id of a running broker."""
        return self._running(index).pid

    def _start(self, stack: ExitStack) -> None:
        kafka_libs()  # it is called before any deadline begins
        scratch = scratch_dir()
        run_dir = stack.enter_context(_run_dir(scratch / "local-kafka"))
        ports = stack.enter_context(reserved_ports(4 * self._count, scratch / "ports"))
        detours = list(map(Detour, ports[3 * self._count :], self._proxies))
        data_dir = self._data_dir or run_dir
        self._nodes = tuple(
            KafkaNode(
                node_id=index,
                port=ports[2 * index],
                controller_port=ports[2 * index + 1],
                folder=run_dir / f"node-{index}",
                data=data_dir / f"node-{index}" / "data",
                detour=detours[index] if detours else None,
                sasl=self._sasl(ports[2 * self._count + index]),
            )
            for index in range(self._count)
        )
        stack.callback(self._end_all)
        cluster_id = _cluster_id(data_dir)
        # Formatting is a short run of Java, and nodes do it side by side. Launching stays in this
        # thread, as a broker ends with the thread that launched it.
        with ThreadPoolExecutor(self._count) as pool:
            prepared = [
                pool.submit(prepare, node, self._nodes, self._config, cluster_id)
                for node in self._nodes
            ]
        for future in prepared:
            future.result()
        deadline = monotonic() + self._ready_timeout_ms / 1000
        for index, node in enumerate(self._nodes):
            self._processes[index] = launch(node, Lifetime.PARENT)
        for index, node in enumerate(self._nodes):
            left_ms = max(1, int((deadline - monotonic()) * 1000))
            await_ready(node, self._processes[index], timeout_ms=left_ms)

    def _sasl(self, port: int) -> Sasl | None:
        return Sasl(port, self._users, self._tls) if self._users else None

    def _end_all(self) -> None:
        """End all brokers, in order if their data is kept; otherwise the wait is not worth it."""
        alive = [process for process in self._processes.values() if process.poll() is None]
        grace_s = _STOP_S if self._data_dir else 0
        end([psutil.Process(process.pid) for process in alive], grace_s=grace_s)
        for process in alive:
            process.wait()
        self._processes.clear()
        self._nodes = ()

    def _check_entered(self) -> None:
        if not self._nodes:
            raise Misuse("the cluster runs only inside `with LocalKafka() as kafka:`")

    def _node(self, index: int) -> KafkaNode:
        self._check_entered()
        if not 0 <= index < self._count:
            raise Misuse(
                f"there is no broker {index}: they are counted from 0 to {self._count - 1}"
            )
        return self._nodes[index]

    def _running(self, index: int) -> psutil.Process:
        self._node(index)
        process = self._processes.get(index)
        if process is None or process.poll() is not None:
            raise Misuse(f"broker {index} does not run")
        return psutil.Process(process.pid)


def _cluster_id(data_dir: Path) -> str:
    """The id that all nodes of the data are formatted with; it is made at the first start."""
    data_dir.mkdir(parents=True, exist_ok=True)
    file = data_dir / "cluster-id"
    if not file.exists():
        file.write_text(new_cluster_id())
    return file.read_text()


@contextmanager
def _run_dir(parent: Path) -> Iterator[Path]:
    """A new folder, removed at the end. Folders whose owners died are removed at the beginning."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = parent / uuid.uuid4().hex[:12]
    own = filelock.FileLock(folder.with_suffix(".lock"), thread_local=False)
    # One at a time, so that nobody sweeps a lock file before it is locked.
    with filelock.FileLock(parent / "sweep.lock", timeout=_LOCK_S):
        for lock_file in parent.glob("*.lock"):
            if lock_file.name != "sweep.lock":
                _sweep(lock_file)
        own.acquire(timeout=0)
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        Path(own.lock_file).unlink(missing_ok=True)
        own.release()


def _sweep(lock_file: Path) -> None:
    owner = filelock.FileLock(lock_file)
    try:
        owner.acquire(timeout=0)
    except filelock.Timeout:
        return
    shutil.rmtree(lock_file.with_suffix(""), ignore_errors=True)
    lock_file.unlink(missing_ok=True)
    owner.release()
