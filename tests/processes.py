"""Processes of `statestore` which begin where their imports are done.

Most of what a short command costs is that it imports. `start` and `run` are like Popen and run of
`subprocess`, for `statestore` and for Python with `-c` or `-m`; but a server, one for each process
of a test run, has imported the command's modules and forks. What it forks is a process like any
other: it has its own arguments, environment and files, and can be killed, stopped and waited for.
Tests of the start itself, or of an interpreter with other settings, take `subprocess`.
"""

import array
import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import IO, Any, Self

from tests import fork_server

ROOT = Path(__file__).resolve().parents[1]

_File = int | IO[str] | IO[bytes] | None
_READ_BYTES = 1 << 16
# Above what a busy machine needs for the longest run.
_END_S = 300


class Process:
    """One that was started; it ends as one of `subprocess.Popen` does, which it is like."""

    def __init__(self, args: Sequence[str], pid: int, status: int, pipes: Sequence[int | None]):
        self.args = args
        self.pid = pid
        self.returncode: int | Any = None
        self._status = status
        self._handle: int | None = None
        with suppress(ProcessLookupError):  # it has ended
            self._handle = os.pidfd_open(pid)
        into, out, err = pipes
        self.stdin = None if into is None else open(into, "w", encoding="utf-8")  # noqa: SIM115, PTH123
        self.stdout = None if out is None else open(out, encoding="utf-8")  # noqa: SIM115, PTH123
        self.stderr = None if err is None else open(err, encoding="utf-8")  # noqa: SIM115, PTH123
        self._read: dict[int, bytearray] = {}
        self._open: set[int] = {pipe for pipe in (out, err) if pipe is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._close_pipes()
        self.wait()

    def __del__(self) -> None:
        if self.returncode is None:
            os.close(self._status)
        if self._handle is not None:
            os.close(self._handle)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; TimeoutExpired if it still runs then."""
        if self.returncode is None:
            if not _readable([self._status], timeout):
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            answer = os.read(self._status, fork_server.ANSWER.size)
            assert answer, "the fork server died"
            (self.returncode,) = fork_server.ANSWER.unpack(answer)
            os.close(self._status)
        return self.returncode

    def communicate(
        self,
        input: str | None = None,  # noqa: A002  # its name in subprocess
        timeout: float | None = None,
    ) -> tuple[str, str]:
        """Write the input, read both outputs to their ends, and wait for the process."""
        until = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if until is None else max(until - time.monotonic(), 0.0)

        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(input or "")
            with suppress(BrokenPipeError):
                self.stdin.close()
        while self._open:
            ready = _readable(list(self._open), left())
            if not ready:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            for pipe in ready:
                data = os.read(pipe, _READ_BYTES)
                self._read.setdefault(pipe, bytearray()).extend(data)
                if not data:
                    self._open.remove(pipe)
        try:
            self.wait(left())
        except subprocess.TimeoutExpired:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout) from None
        out, err = self._text(self.stdout), self._text(self.stderr)
        self._close_pipes()
        return out, err

    def send_signal(self, number: int) -> None:
        """Send a signal; one to a process that has ended does nothing."""
        if self._handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _text(self, file: IO[str] | None) -> str:
        if file is None or file.closed:
            return ""
        return self._read.get(file.fileno(), bytearray()).decode().replace("\r\n", "\n")

    def _close_pipes(self) -> None:
        self._open.clear()
        for file in (self.stdout, self.stderr, self.stdin):
            if file is not None:
                with suppress(BrokenPipeError):
                    file.close()


AnyProcess = Process | subprocess.Popen[str]


def start(
    arguments: Sequence[str | Path],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    stdin: _File = None,
    stdout: _File = None,
    stderr: _File = None,
) -> Process:
    """Start a process; the files are as for `subprocess.Popen`, and what a pipe brings is text."""
    words = [str(word) for word in arguments]
    environment = dict(os.environ if env is None else env)
    _check_same_python(environment)
    ours: list[int | None] = []
    theirs: list[int] = []
    for number, file in enumerate((stdin, stdout, stderr)):
        if file == subprocess.PIPE:
            read, write = os.pipe()
            ours.append(read if number else write)
            theirs.append(write if number else read)
        else:
            ours.append(None)
            theirs.append(_opened(file, number, theirs))
    status, written = os.pipe()
    told = {"arguments": words, "cwd": str(cwd or Path.cwd()), "environment": environment}
    try:
        pid = _server().fork(told, [*theirs, written])
    finally:
        for file in (*theirs, written):
            os.close(file)
    return Process(words, pid, status, ours)


def run(
    arguments: Sequence[str | Path],
    *,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    check: bool = False,
    input: str | None = None,  # noqa: A002  # its name in subprocess
) -> "subprocess.CompletedProcess[str]":
    """Start a process and wait for it, both of its outputs captured; killed if it takes longer."""
    pipe = subprocess.PIPE
    stdin = None if input is None else pipe
    with start(arguments, cwd=cwd, env=env, stdin=stdin, stdout=pipe, stderr=pipe) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    assert process.returncode is not None
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class _Server:
    """The process that forks; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        self._turn = Lock()
        with theirs:
            command = [sys.executable, fork_server.__file__, str(theirs.fileno())]
            # A thread of numpy's or of Arrow's would be missing after a fork.
            alone = {
                "OPENBLAS_NUM_THREADS": "1",
                "JE_ARROW_MALLOC_CONF": "background_thread:false",
            }
            variables = {**os.environ, **alone}
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=variables,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(self, told: Mapping[str, object], files: Sequence[int]) -> int:
        """The id of a new process."""
        text = json.dumps(told).encode()
        passed = array.array("i", files)
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)
        with self._turn:
            self._socket.sendmsg([fork_server.LENGTH.pack(len(text))], [rights])
            self._socket.sendall(text)
            answer = self._socket.recv(fork_server.ANSWER.size)
        assert answer, "the fork server died"
        (pid,) = fork_server.ANSWER.unpack(answer)
        assert isinstance(pid, int)
        return pid

    def end(self) -> None:
        """Let it end."""
        self._socket.close()
        self._process.wait()


def outputs_of(process: AnyProcess, within_s: float = _END_S) -> tuple[str, str]:
    """Both outputs of a process, at its end; where each thread stands, if it does not end."""
    try:
        return process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        _, err = process.communicate(timeout=_END_S)
        raise AssertionError(f"{process.args!r} has not ended: {err[-20_000:]}") from None


@cache
def _server() -> _Server:
    made = _Server()
    atexit.register(made.end)
    return made


def _opened(file: _File, number: int, earlier: Sequence[int]) -> int:
    """A file of its own for the other process."""
    if file is None:
        return os.dup(number)
    if file == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR)
    if file == subprocess.STDOUT:
        return os.dup(earlier[1])
    return os.dup(file if isinstance(file, int) else file.fileno())


def _readable(files: Sequence[int], timeout: float | None) -> list[int]:
    poller = select.poll()
    for file in files:
        poller.register(file, select.POLLIN)
    return [file for file, _ in poller.poll(None if timeout is None else timeout * 1000)]


def _check_same_python(environment: Mapping[str, str]) -> None:
    def settings(of: Mapping[str, str]) -> dict[str, str]:
        named = ("PYTHON", "LC_", "LANG", "LD_")
        return {k: v for k, v in of.items() if k.startswith(named) and k != "PYTHONPATH"}

    assert settings(environment) == settings(os.environ), "take subprocess for another interpreter"
