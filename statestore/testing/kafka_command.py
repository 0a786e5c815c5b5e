"""`statestore kafka start|stop|status`: a local broker that outlives the command.

Its files are in `<scratch>/kafka`: `broker.json` names its process, `broker.log` has what it
printed, and `data` has what it stored. A broker with another data folder has a folder of its own
below `<scratch>/kafka/others`, so that it can run beside the first. `stop` ends exactly the
recorded process, by pid and start time, and never one found by name.
"""

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import filelock
import msgspec
import psutil

from statestore.commands.help import CommandGroup
from statestore.errors import UNREADABLE, HostFailure, Locked, Misuse
from statestore.model.decoders import json_decoder
from statestore.testing.kafka_jars import kafka_libs, scratch_dir
from statestore.testing.kafka_node import (
    HOST,
    KafkaNode,
    Lifetime,
    await_ready,
    end,
    is_free,
    launch,
    new_cluster_id,
    prepare,
    reserved_ports,
)

DEFAULT_PORT = 9092

_READY_MS = 60_000
_STOP_S = 30.0
_LOCK_S = 180
# psutil derives start times from the boot time, which clock corrections move a little.
_START_TIME_SLACK_S = 2.0


class RunningBroker(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a started broker, as it stands in `broker.json`."""

    pid: int
    started_at: float
    port: int
    bootstrap_servers: str
    data_dir: str
    log: str

    def process(self) -> psutil.Process | None:
        """The recorded process, if it still lives; another one with its pid does not count."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started_at) <= _START_TIME_SLACK_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


_data_dir = click.option(
    "--data-dir",
    type=click.Path(file_okay=False, resolve_path=True, path_type=Path),
    help="Where a broker keeps its topics over restarts; each folder has a broker of its own. "
    "[default: kafka/data in the scratch folder]",
)


@click.group(cls=CommandGroup)
def kafka() -> None:
    """Run one local Kafka broker, for development; needs Java 17 and, once, Maven."""


@kafka.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help=f"Port on {HOST}. [default: {DEFAULT_PORT}]"
)
@_data_dir
@_json
def start(*, port: int | None, data_dir: Path | None, as_json: bool) -> None:
    """Start the broker, wait until it is ready, print its bootstrap servers."""
    home = _home(data_dir)
    with _exclusive(home):
        running = _read(home)
        already = running is not None and running.process() is not None
        if running is not None and already:
            _refuse_other(running, port, data_dir)
        else:
            running = _start(home, port or DEFAULT_PORT, data_dir or home / "data")
    if as_json:
        _print_json(running, already_running=already)
    elif already:
        click.echo(f"Kafka runs already at {running.bootstrap_servers} (pid {running.pid})")
    else:
        click.echo(f"Kafka is ready at {running.bootstrap_servers} (pid {running.pid})")


@kafka.command()
@_data_dir
@_json
def stop(*, data_dir: Path | None, as_json: bool) -> None:
    """Stop the broker and keep its data; it is not an error if none runs."""
    home = _home_of_running(data_dir)
    with _exclusive(home):
        running = _read(home)
        process = None if running is None else running.process()
        clean = True if process is None else end([process], grace_s=_STOP_S)
        _record(home).unlink(missing_ok=True)
    if as_json:
        click.echo(
            msgspec.json.encode({"running": False, "stopped": process is not None, "clean": clean})
        )
    elif process is None:
        click.echo("Kafka does not run")
    elif clean:
        click.echo("Kafka is stopped")
    else:
        click.echo(
            f"Kafka did not stop within {_STOP_S:g} s and was killed; it recovers at its next start"
        )


@kafka.command()
@_data_dir
@_json
@click.pass_context
def status(context: click.Context, *, data_dir: Path | None, as_json: bool) -> None:
    """Say whether the broker runs: exit code 0 if it does, 1 if not."""
    running = _read(_home_of_running(data_dir))
    if running is not None and running.process() is None:
        running = None
    if as_json:
        _print_json(running)
    elif running is None:
        click.echo("Kafka does not run")
    else:
        click.echo(
            f"Kafka runs at {running.bootstrap_servers} (pid {running.pid}), log in {running.log}"
        )
    context.exit(1 if running is None else 0)


def _start(home: Path, port: int, data_dir: Path) -> RunningBroker:
    if not is_free(port):
        raise Misuse(
            f"port {port} of {HOST} is taken by another program: stop that one, or choose "
            "another port with --port"
        )
    kafka_libs()
    with reserved_ports(1, scratch_dir() / "ports") as (controller_port,):
        node = KafkaNode(
            node_id=0, port=port, controller_port=controller_port, folder=home, data=data_dir
        )
        node.log.unlink(missing_ok=True)
        prepare(node, [node], {}, new_cluster_id())
        process = launch(node, Lifetime.DETACHED)
        try:
            running = RunningBroker(
                pid=process.pid,
                started_at=psutil.Process(process.pid).create_time(),
                port=port,
                bootstrap_servers=node.address,
                data_dir=str(data_dir),
                log=str(node.log),
            )
            # It is recorded before it is ready: if this command is killed, `stop` can still end it.
            _write(home, running)
            await_ready(node, process, timeout_ms=_READY_MS)
        except BaseException:
            _abandon(home, process)
            raise
    # Nothing waits for a process that is to outlive this one: its handle would warn about that.
    process.returncode = 0
    return running


def _abandon(home: Path, process: "subprocess.Popen[bytes]") -> None:
    """End a broker that did not get ready."""
    if process.poll() is None:
        process.kill()
    process.wait()
    _record(home).unlink(missing_ok=True)


def _refuse_other(running: RunningBroker, port: int | None, data_dir: Path | None) -> None:
    other_port = port is not None and port != running.port
    other_data = data_dir is not None and str(data_dir) != running.data_dir
    if other_port or other_data:
        raise Misuse(
            f"Kafka runs already at {running.bootstrap_servers} with its data in "
            f"{running.data_dir}: stop it first (statestore kafka stop), or pass a --data-dir of "
            "its own and a free --port for another broker"
        )


def _home(data_dir: Path | None) -> Path:
    """The folder of the broker that keeps its topics there."""
    home = scratch_dir() / "kafka"
    if data_dir not in (None, home / "data"):
        digest = hashlib.sha256(str(data_dir).encode()).hexdigest()
        home = home / "others" / digest[:16]
    home.mkdir(parents=True, exist_ok=True)
    return home


def _home_of_running(data_dir: Path | None) -> Path:
    """The folder of the broker that is meant; without a name, of the only one that runs."""
    home = _home(data_dir)
    if data_dir is not None or _runs(home):
        return home
    others = [other for other in sorted(home.glob("others/*")) if _runs(other)]
    if len(others) > 1:
        told = ", ".join(running.data_dir for other in others if (running := _read(other)))
        raise Misuse(f"several brokers run: pass --data-dir with one of {told}")
    return others[0] if others else home


def _runs(home: Path) -> bool:
    running = _read(home)
    return running is not None and running.process() is not None


@contextmanager
def _exclusive(home: Path) -> Iterator[None]:
    """One start or stop at a time."""
    lock = filelock.FileLock(home / "command.lock", timeout=_LOCK_S)
    try:
        lock.acquire()
    except filelock.Timeout as failure:
        raise Locked(
            f"another `statestore kafka` command has been at work for {_LOCK_S} s: end it, "
            f"the lock is {lock.lock_file}"
        ) from failure
    try:
        yield
    finally:
        lock.release()


def _record(home: Path) -> Path:
    return home / "broker.json"


def _read(home: Path) -> RunningBroker | None:
    """The last recorded broker; None if there is none."""
    try:
        return json_decoder(RunningBroker).decode(_record(home).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, *UNREADABLE) as failure:
        raise HostFailure(
            f"{_record(home)} cannot be read ({failure}): "
            "remove it after ending the broker it belongs to"
        ) from failure


def _write(home: Path, running: RunningBroker) -> None:
    fresh = _record(home).with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(running))
    fresh.replace(_record(home))


def _print_json(running: RunningBroker | None, **more: bool) -> None:
    fields = {} if running is None else msgspec.to_builtins(running)
    click.echo(msgspec.json.encode({"running": running is not None, **more, **fields}))
