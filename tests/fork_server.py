"""The server of `tests.processes`: it imports `statestore` once, and forks for each process.

It has one thread, so what it forks is whole. It imports nothing of the tests. A child gets the
arguments, the environment, the folder, the files and the path for imports that a new process would
have. Run it as a script with the number of the socket that it is asked through.
"""

import array
import faulthandler
import gc
import json
import os
import runpy
import select
import signal
import site
import socket
import struct
import sys
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import statestore.cli
import statestore.commands.audit  # it and the next are imported for the children
import statestore.commands.running
import statestore.topology.dsl.builder

LENGTH = struct.Struct("=I")
ANSWER = struct.Struct("=i")
# The three standard ones, and where to write how the process ended.
_FILES = 4


class Wanted(NamedTuple):
    """What a process is to be."""

    arguments: list[str]
    cwd: str
    environment: dict[str, str]
    files: list[int]


def main() -> None:
    """Serve until nobody is there to ask."""
    base = sys.path[1 + len(_path()) :]
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"{len(threads)} threads: a fork would have but one of them"
    gc.collect()
    gc.freeze()
    wanted = _asked_for(socket.socket(fileno=int(sys.argv[1])))
    if wanted is not None:
        _become(wanted, base)


def _asked_for(asked: socket.socket) -> Wanted | None:
    """What this process is to be: it is a child. The server returns None in the end."""
    statuses: dict[int, int] = {}
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    # A child hears of one that comes at its first moment, as soon as it can answer.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([asked, woken], [], [])
        if woken in ready:
            woken.recv(4096)
            _tell_ends(statuses)
        if asked not in ready:
            continue
        told = _received(asked)
        if told is None:
            return None
        wanted, status = told
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            for file in (asked, woken, wakes):
                file.close()
            for other in (*statuses.values(), status):
                os.close(other)
            return wanted
        for number in wanted.files:
            os.close(number)
        statuses[pid] = status
        asked.sendall(ANSWER.pack(pid))


def _received(asked: socket.socket) -> tuple[Wanted, int] | None:
    """What is wanted, and the file for the status; None if nobody asks any more."""
    files = array.array("i")
    head, passed, _, _ = asked.recvmsg(LENGTH.size, socket.CMSG_SPACE(_FILES * files.itemsize))
    if not head:
        return None
    for _, _, data in passed:
        files.frombytes(data)
    (length,) = LENGTH.unpack(head)
    text = b""
    while len(text) < length:
        text += asked.recv(length - len(text))
    told: dict[str, Any] = json.loads(text)
    *standard, status = files
    return Wanted(**told, files=standard), status


def _tell_ends(statuses: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            status = statuses.pop(ended[0])
            with suppress(BrokenPipeError):  # nobody waits for it
                os.write(status, ANSWER.pack(os.waitstatus_to_exitcode(ended[1])))
            os.close(status)


def _become(wanted: Wanted, base: list[str]) -> None:
    """Do the work of the process, which ends as a new one would."""
    for number, file in enumerate(wanted.files):
        os.dup2(file, number)
        os.close(file)
    faulthandler.enable()  # SIGABRT tells where each thread stands
    os.chdir(wanted.cwd)
    os.environ.clear()
    os.environ.update(wanted.environment)
    program, *rest = sys.argv = wanted.arguments
    replaced = sys.modules["__main__"]
    sys.modules["__main__"] = script = ModuleType("__main__")
    vars(script)["_replaced"] = replaced  # this very function is a part of it
    if Path(program).name == "statestore":
        sys.path[:] = [str(Path(program).parent), *_path(), *base]
        _customize()
        script.__file__ = program
        statestore.cli.main()
        return
    option, what, *words = rest
    sys.argv = [what, *words]
    sys.path[:] = ["" if option == "-c" else wanted.cwd, *_path(), *base]
    _customize()
    if option == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    assert option == "-c", f"{wanted.arguments} is a process that has to be started otherwise"
    sys.argv[0] = option
    exec(compile(what, "<string>", "exec"), vars(script))  # that is what -c asks for


def _customize() -> None:
    """Import what a new process imports at its start, if there is such a module on its path."""
    sys.modules.pop("sitecustomize", None)
    site.execsitecustomize()


def _path() -> list[str]:
    """The folders that a variable says to import from."""
    return [os.path.abspath(one) for one in os.environ.get("PYTHONPATH", "").split(":") if one]  # noqa: PTH100


if __name__ == "__main__":
    main()
