"""`statestore serve` and `statestore ui` as processes, for tests that attack them on loopback."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.builders import DEADLINE_S, eventually
from tests.ui_rig import filled

COMMANDS = ("serve", "ui")


@dataclass
class Attacked:
    """One of the two servers, and what it writes to stdout and stderr."""

    port: int
    process: "subprocess.Popen[bytes]"
    log: Path

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), DEADLINE_S)

    def asked(self, *lines: str, body: bytes = b"") -> int:
        """The status of the answer to these lines; 0: it was cut off."""
        with self.connect() as connection:
            connection.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode() + body)
            return status_of(connection)

    def answers(self) -> bool:
        """Whether an honest client gets its answer now."""
        with suppress(OSError):
            return self.asked("GET /health HTTP/1.1", "Host: 127.0.0.1") in {200, 404}
        return False

    def rss(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def told(self) -> list[str]:
        """The lines of its log after the one with its address."""
        return self.log.read_text().splitlines()[1:]


def status_of(connection: socket.socket) -> int:
    """The status of the next answer; 0: the connection was cut off."""
    with suppress(OSError):
        answer = connection.recv(4096)
        return int(answer.split()[1]) if answer.startswith(b"HTTP/1.1 ") else 0
    return 0


def sent_until_cut_off(connection: socket.socket, begin: bytes, more: bytes, at_most: int) -> int:
    """Send `more` again and again; how many bytes were sent until the server had enough."""
    sent = 0
    with suppress(OSError):
        connection.sendall(begin)
        while sent < at_most:
            connection.sendall(more)
            sent += len(more)
    return sent


@contextmanager
def attacked(command: str, folder: Path, *, files: int | None = None) -> Iterator[Attacked]:
    """Start one of `COMMANDS`, which may open so many files."""
    filled(folder / "state", "shop")
    log = folder / f"{command}.log"
    ours = [sys.executable, "-m", "statestore", command, "--application-id=shop", "--port=0"]
    ours.append(f"--state-dir={folder / 'state'}")
    if files is not None:
        ours = ["sh", "-c", f'ulimit -n {files}; exec "$@"', "sh", *ours]
    with (
        log.open("wb") as out,
        subprocess.Popen(ours, stdout=out, stderr=out) as process,
    ):
        try:
            eventually(lambda: b"\n" in log.read_bytes(), "the server listens")
            port = int(log.read_text().split("127.0.0.1:")[1].split()[0].strip("/"))
            yield Attacked(port, process, log)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
