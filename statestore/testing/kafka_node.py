"""One broker process: its ports, its properties file, its formatted folder, its launch and its end.

`LocalKafka` and `statestore kafka` use it. Listeners are on 127.0.0.1 only. A node is both broker
and controller. The voters of KRaft are static, so ports may differ between starts on the same data.
"""

import base64
import shutil
import signal
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import filelock
import psutil

from statestore.errors import HostFailure, InvalidSetting, Unavailable
from statestore.kafka.testing import ClusterDescription, wait_until_ready
from statestore.testing.kafka_jars import INSTALL, java, kafka_libs

HOST = "127.0.0.1"
BrokerConfig = Mapping[str, str | int | float | bool]

# These are below Linux's ephemeral range (32768 and up): no outgoing connection takes the port of a
# stopped broker, and no client that retries that port gets connected to itself.
_PORTS = range(20_000, 32_000)

# The launcher sets these keys: with another value nobody could reach or stop the broker.
_OWNED = frozenset(
    {
        "process.roles",
        "node.id",
        "broker.id",
        "listeners",
        "advertised.listeners",
        "listener.security.protocol.map",
        "controller.listener.names",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "inter.broker.listener.name",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
    }
)

# Measured on 2 cores, format and start together: 2.8 s and 4.7 CPU seconds with Java's defaults,
# 2.1 s and 2.6 with these. Compiling at the first tier only did not lower produce and fetch rates.
_JAVA_OPTIONS = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
    "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn",
)
_FORMAT_S = 60
_MODULES = "org.apache.kafka.common.security"
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_KILL_S = 10


class Lifetime(StrEnum):
    """How long a launched broker lives."""

    PARENT = "parent"  # no longer than the thread that launched it
    DETACHED = "detached"  # until somebody stops it


@dataclass(frozen=True, slots=True)
class Detour:
    """A second listener, at `port`, that sends its clients to the port of a proxy."""

    port: int
    advertised_port: int


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM format: a certificate, with those that lead to its authority, and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class Sasl:
    """A listener at `port` that lets in `users`, given as passwords by name; over TLS, if any."""

    port: int
    users: Mapping[str, str]
    tls: Tls | None = None


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """Where one broker listens and keeps its files: `server.properties`, `broker.log`, `data`."""

    node_id: int
    port: int
    controller_port: int
    folder: Path
    data: Path
    detour: Detour | None = None
    sasl: Sasl | None = None

    @property
    def address(self) -> str:
        """The address that a client connects to."""
        return f"{HOST}:{self.port}"

    @property
    def properties(self) -> Path:
        """The file that the broker is started with."""
        return self.folder / "server.properties"

    @property
    def keystore(self) -> Path:
        """The key and the certificate that the broker shows, if its clients come over TLS."""
        return self.folder / "keystore.pem"

    @property
    def log(self) -> Path:
        """Everything the broker and the format step print, appended over restarts."""
        return self.folder / "broker.log"

    def log_tail(self, lines: int = 25) -> str:
        """The end of the log, for messages."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def new_cluster_id() -> str:
    """A random id without dashes: Kafka's format tool takes a leading dash for an option."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def is_free(port: int) -> bool:
    """Whether a server could listen on that port of 127.0.0.1 now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


@contextmanager
def reserved_ports(count: int, locks_dir: Path) -> Iterator[tuple[int, ...]]:
    """Free ports that no other caller gets meanwhile, even while nothing listens on them."""
    locks_dir.mkdir(parents=True, exist_ok=True)
    # The start is random: clients of a broker that was just closed should not meet the next one.
    shift = uuid.uuid4().int
    ports: list[int] = []
    with ExitStack() as locks:
        for step in range(len(_PORTS)):
            if len(ports) == count:
                break
            port = _PORTS[(shift + step) % len(_PORTS)]
            lock = filelock.FileLock(locks_dir / f"{port}.lock", thread_local=False)
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                continue
            locks.callback(lock.release)
            if is_free(port):
                ports.append(port)
        if len(ports) < count:
            raise HostFailure(f"no {count} free ports between {_PORTS[0]} and {_PORTS[-1]}")
        yield tuple(ports)


def prepare(
    node: KafkaNode, cluster: Sequence[KafkaNode], config: BrokerConfig, cluster_id: str
) -> None:
    """Write the properties file, and format the data folder unless it is formatted already."""
    node.folder.mkdir(parents=True, exist_ok=True)
    node.data.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{key}={value}\n" for key, value in _properties(node, cluster, config).items())
    if node.sasl is not None and node.sasl.tls is not None:
        _write_keystore(node.keystore, node.sasl.tls)
    # Java reads this file as latin-1 with \uXXXX escapes.
    node.properties.write_text(
        text.replace("\\", "\\\\"), encoding="latin-1", errors="backslashreplace"
    )
    if (node.data / "meta.properties").exists():
        return
    arguments = ["format", "-t", cluster_id, "-c", str(node.properties), *_scram_users(node.sasl)]
    with node.log.open("ab") as log:
        try:
            done = subprocess.run(
                _java_command("kafka.tools.StorageTool", *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=_FORMAT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as failure:
            raise Unavailable(f"formatting {node.data} took more than {_FORMAT_S} s") from failure
    if done.returncode != 0:
        tail = node.log_tail()
        if "UnsupportedClassVersionError" in tail:
            raise HostFailure(f"{java()} is too old for Kafka, which needs Java 17: {INSTALL}")
        raise Unavailable(f"Kafka could not format {node.data}; the end of {node.log}:\n{tail}")


def launch(
    node: KafkaNode, lifetime: Lifetime, *, options: Sequence[str] = ()
) -> "subprocess.Popen[bytes]":
    """Start a prepared node, which is not ready yet when this returns.

    `Lifetime.PARENT` uses `setpriv --pdeathsig KILL` where that exists (on Linux): the kernel kills
    the broker when the THREAD that launched it ends, in whatever way, so launch it from a thread
    that lives as long as the broker. Elsewhere only the caller's clean-up ends it. `options` are
    Java's.
    """
    command = _java_command("kafka.Kafka", str(node.properties), options=options)
    setpriv = shutil.which("setpriv")
    if lifetime is Lifetime.PARENT and setpriv:
        command = [setpriv, "--pdeathsig", "KILL", *command]
    with node.log.open("ab") as log:
        # In either case the broker leaves the terminal's process group: Ctrl-C goes to the caller,
        # which then ends the broker.
        return subprocess.Popen(
            command,
            cwd=node.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=lifetime is Lifetime.DETACHED,
            process_group=0 if lifetime is Lifetime.PARENT else None,
        )


def await_ready(
    node: KafkaNode, process: "subprocess.Popen[bytes]", *, timeout_ms: int
) -> ClusterDescription:
    """Wait until the node answers as a member; `Unavailable` shows the end of its log."""

    def give_up() -> None:
        if process.poll() is not None:
            raise Unavailable(f"the broker ended with exit code {process.returncode}")

    try:
        return wait_until_ready(
            node.address, node_ids=(node.node_id,), timeout_ms=timeout_ms, give_up=give_up
        )
    except Unavailable as failure:
        raise Unavailable(
            f"broker {node.node_id} at {node.address} did not get ready: {failure}; "
            f"the end of {node.log}:\n{node.log_tail()}"
        ) from failure


def end(processes: Sequence[psutil.Process], *, grace_s: float) -> bool:
    """End these processes together, wait for them, and say whether SIGTERM was enough.

    SIGKILL follows after `grace_s`, or at once if that is 0. psutil compares start times, so a
    process that has got a reused pid is never ended.
    """
    left = list(processes)
    if grace_s > 0:
        _signal(left, signal.SIGTERM)
        left = psutil.wait_procs(left, timeout=grace_s)[1]
        if not left:
            return True
    _signal(left, signal.SIGKILL)
    left = psutil.wait_procs(left, timeout=_KILL_S)[1]
    if left:
        pids = ", ".join(str(process.pid) for process in left)
        raise HostFailure(f"processes {pids} survived SIGKILL for {_KILL_S} s")
    return False


def _signal(processes: Sequence[psutil.Process], order: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(order)


def archive_of(libs: Path) -> Path:
    """Where the archive of the classes of these jars is, if there is one."""
    return libs.with_name("classes.jsa")


def _java_command(main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    libs = kafka_libs()
    if (archive := archive_of(libs)).exists():
        options = (*options, f"-XX:SharedArchiveFile={archive}")
    return [java(), *_JAVA_OPTIONS, *options, "-cp", f"{libs}/*", main_class, *arguments]


def _properties(
    node: KafkaNode, cluster: Sequence[KafkaNode], config: BrokerConfig
) -> dict[str, str]:
    if taken := sorted(_OWNED & config.keys()):
        raise InvalidSetting(
            f"the local broker decides '{taken[0]}' itself: leave it out of the broker config"
        )
    voters = ",".join(f"{peer.node_id}@{HOST}:{peer.controller_port}" for peer in cluster)
    replicas = min(3, len(cluster))
    in_sync = min(2, replicas)
    internal_topics: dict[str, str | int] = {}
    for topic, min_isr in (
        ("offsets.topic", None),
        ("transaction.state.log", "transaction.state.log.min.isr"),
        ("share.coordinator.state.topic", "share.coordinator.state.topic.min.isr"),
    ):
        internal_topics[f"{topic}.replication.factor"] = replicas
        internal_topics[f"{topic}.num.partitions"] = 4
        if min_isr:
            internal_topics[min_isr] = in_sync
    listeners = {"PLAINTEXT": node.port, "CONTROLLER": node.controller_port}
    advertised = {"PLAINTEXT": node.port}
    if node.detour is not None:
        listeners["DETOUR"] = node.detour.port
        advertised["DETOUR"] = node.detour.advertised_port
    protocols = dict.fromkeys(listeners, "PLAINTEXT")
    authentication: dict[str, str] = {}
    if node.sasl is not None:
        listeners["SASL"] = advertised["SASL"] = node.sasl.port
        protocols["SASL"] = "SASL_PLAINTEXT" if node.sasl.tls is None else "SASL_SSL"
        authentication = _authentication(node.sasl)
        if node.sasl.tls is not None:
            authentication["listener.name.sasl.ssl.keystore.type"] = "PEM"
            authentication["listener.name.sasl.ssl.keystore.location"] = str(node.keystore)
    merged: dict[str, str | int | float | bool] = {
        "process.roles": "broker,controller",
        "node.id": node.node_id,
        "controller.quorum.voters": voters,
        "listeners": _addresses(listeners),
        "advertised.listeners": _addresses(advertised),
        "listener.security.protocol.map": ",".join(map(":".join, protocols.items())),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(node.data),
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        **internal_topics,
        "group.initial.rebalance.delay.ms": 0,
        "auto.create.topics.enable": False,
        # Kafka's week counts from the times of records, so it takes records of last year at once.
        "log.retention.ms": -1,
        # A killed broker is admitted again only when its old session is over: after 9 s by default.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        # By default it is 128 MiB, taken from the heap at start.
        "log.cleaner.dedupe.buffer.size": 16 * 1024 * 1024,
        **authentication,
        **config,
    }
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in merged.items()
    }


def _authentication(sasl: Sasl) -> dict[str, str]:
    users = " ".join(f'user_{name}="{password}"' for name, password in sasl.users.items())
    modules = {"plain": f"{_MODULES}.plain.PlainLoginModule required {users};"}
    modules |= {one.lower(): f"{_MODULES}.scram.ScramLoginModule required;" for one in _SCRAM}
    return {
        "sasl.enabled.mechanisms": ",".join(one.upper() for one in modules),
        **{f"listener.name.sasl.{one}.sasl.jaas.config": text for one, text in modules.items()},
    }


def _write_keystore(keystore: Path, tls: Tls) -> None:
    """One file of both, as Kafka wants them, which nobody else may read."""
    try:
        text = tls.key.read_bytes() + b"\n" + tls.certificate.read_bytes()
    except OSError as failure:
        raise InvalidSetting(
            f"the certificate and the key of the local broker cannot be read: {failure}"
        ) from failure
    keystore.unlink(missing_ok=True)
    keystore.touch(mode=0o600)
    keystore.write_bytes(text)


def _scram_users(sasl: Sasl | None) -> list[str]:
    """What has the format tool store the users' passwords, as SCRAM wants them."""
    return [
        word
        for name, password in ({} if sasl is None else sasl.users).items()
        for mechanism in _SCRAM
        for word in ("-S", f'{mechanism}=[name="{name}",password="{password}"]')
    ]


def _addresses(ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
