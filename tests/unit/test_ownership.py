"""One owner of a folder: exclusive across processes, epochs that rise, the dead told apart.

Shows I5.
"""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import psutil
import pytest

from statestore.errors import HostFailure, InvalidSetting, Locked
from statestore.layout import owners
from statestore.layout.owners import Claim, claim, read_owner
from tests.builders import DEADLINE_S, ManualClock, child, eventually

OWNING = """
import sys
from pathlib import Path
from statestore.layout.owners import claim
from tests.builders import ManualClock
held = claim(Path(sys.argv[1]), what="task 0_0", wait_ms=int(sys.argv[2]), clock=ManualClock())
print(held.owner.epoch, flush=True)
sys.stdin.readline()
held.release()
print("released", flush=True)
sys.stdin.readline()
"""
CONTENDING = """
import sys
from pathlib import Path
from statestore.layout.owners import claim
from tests.builders import ManualClock
folder = Path(sys.argv[1])
for _ in range(int(sys.argv[2])):
    held = claim(folder, what="task 0_0", wait_ms=20_000, clock=ManualClock())
    (folder / "inside").mkdir()
    (folder / "inside").rmdir()
    print(held.owner.epoch, flush=True)
    held.release()
"""
Own = Callable[[], subprocess.Popen[str]]


def claimed(folder: Path, *, wait_ms: int = 0) -> Claim:
    return claim(folder, what="task 0_0", wait_ms=wait_ms, clock=ManualClock())


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Own]:
    """Start a process that holds the folder."""
    with ExitStack() as processes:

        def start() -> subprocess.Popen[str]:
            process = processes.enter_context(child(OWNING, tmp_path, 0))
            processes.callback(process.kill)
            assert int(line(process)) > 0
            return process

        yield start


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    assert text, process.communicate()[1]
    return text.strip()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


# Exclusion.


def test_a_folder_held_by_another_process_is_locked_and_the_error_names_it(
    tmp_path: Path, own: Own
) -> None:
    owner = own()
    with pytest.raises(
        Locked, match=rf"task 0_0.*process {owner.pid} on .*epoch 1.*waited 0 ms: let"
    ):
        claimed(tmp_path)


def test_another_process_is_kept_out_while_this_one_holds_the_folder(tmp_path: Path) -> None:
    held = claimed(tmp_path)
    with child(OWNING, tmp_path, 0) as other:
        _, errors = other.communicate(timeout=DEADLINE_S)
    assert other.returncode != 0
    assert f"process {os.getpid()} on" in errors
    assert held.still_ours()
    held.release()
    with child(OWNING, tmp_path, 0) as other:
        assert line(other) == "2"
        other.kill()


def test_a_second_claim_in_the_same_process_is_kept_out_too(tmp_path: Path) -> None:
    held = claimed(tmp_path)
    with pytest.raises(Locked, match=f"process {os.getpid()} .* that is this process, where"):
        claimed(tmp_path)
    held.release()
    assert claimed(tmp_path).owner.epoch == 2


def test_a_claim_waits_for_an_owner_that_lets_go_in_time(tmp_path: Path, own: Own) -> None:
    owner = own()
    got: list[Claim] = []
    waiting = threading.Thread(target=lambda: got.append(claimed(tmp_path, wait_ms=20_000)))
    waiting.start()
    say(owner)
    waiting.join(DEADLINE_S)
    assert got[0].owner.epoch == 2
    assert got[0].previous is not None
    assert got[0].previous.released


def test_processes_that_contend_are_never_inside_together_and_epochs_never_repeat(
    tmp_path: Path,
) -> None:
    rounds = 8
    with ExitStack() as processes:
        contenders = [
            processes.enter_context(child(CONTENDING, tmp_path, rounds)) for _ in range(3)
        ]
        ended = [contender.communicate(timeout=DEADLINE_S) for contender in contenders]
    assert [errors for _, errors in ended] == [""] * 3
    epochs = [int(epoch) for output, _ in ended for epoch in output.split()]
    assert sorted(epochs) == list(range(1, 3 * rounds + 1))


def test_release_works_from_another_thread_and_twice(tmp_path: Path) -> None:
    held = claimed(tmp_path)
    for _ in range(2):
        releasing = threading.Thread(target=held.release)
        releasing.start()
        releasing.join()
    assert claimed(tmp_path).previous == msgspec.structs.replace(held.owner, released=True)


def test_a_folder_that_is_not_there_cannot_be_claimed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(HostFailure, match="cannot lock"):
        claimed(tmp_path / "file")


# Epochs.


def test_epochs_rise_with_every_claim_also_after_a_kill(tmp_path: Path, own: Own) -> None:
    assert read_owner(tmp_path) is None
    first = claimed(tmp_path)
    assert (first.owner.epoch, first.previous) == (1, None)
    first.release()
    for epoch in (2, 3):
        owner = own()
        current = read_owner(tmp_path)
        assert current is not None
        assert (current.epoch, current.pid) == (epoch, owner.pid)
        owner.kill()
        owner.wait()
    assert claimed(tmp_path).owner.epoch == 4


def test_a_claim_knows_when_a_newer_epoch_took_over(tmp_path: Path) -> None:
    """As on a volume whose locks do not work: the lock is ours, the epoch is not."""
    held = claimed(tmp_path)
    assert held.still_ours()
    newer = msgspec.structs.replace(held.owner, epoch=held.owner.epoch + 1)
    (tmp_path / "owner.json").write_bytes(msgspec.json.encode(newer))
    assert not held.still_ours()
    held.release()
    assert read_owner(tmp_path) == newer


def test_an_unreadable_owner_file_is_an_error_and_leaves_the_folder_unlocked(
    tmp_path: Path,
) -> None:
    (tmp_path / "owner.json").write_text('{"epoch": ', encoding="utf-8")
    with pytest.raises(HostFailure, match=r"owner\.json is not readable.*remove it"):
        claimed(tmp_path)
    (tmp_path / "owner.json").unlink()
    assert claimed(tmp_path).owner.epoch == 1


# Dead or alive.


def test_an_owner_that_released_is_dead_though_its_process_lives(tmp_path: Path, own: Own) -> None:
    owner = own()
    say(owner)
    assert line(owner) == "released"
    taken = claimed(tmp_path)
    assert taken.previous is not None
    assert taken.previous.pid == owner.pid
    assert taken.previous.provably_dead()
    assert owner.poll() is None


def test_a_killed_owner_is_dead_and_a_living_one_is_not(tmp_path: Path, own: Own) -> None:
    owner = own()
    current = read_owner(tmp_path)
    assert current is not None
    assert not current.provably_dead()
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    taken = claimed(tmp_path)
    assert taken.previous == current
    assert not current.released
    assert current.provably_dead()
    assert not taken.owner.provably_dead()


def test_a_killed_owner_is_dead_before_its_parent_has_taken_notice(
    tmp_path: Path, own: Own
) -> None:
    owner = own()
    current = read_owner(tmp_path)
    assert current is not None
    process = psutil.Process(owner.pid)
    owner.send_signal(signal.SIGKILL)
    eventually(lambda: process.status() == psutil.STATUS_ZOMBIE, "the child is a zombie")
    assert current.provably_dead()


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({}, False),
        ({"released": True}, True),
        ({"host": "elsewhere"}, False),
        ({"host": "elsewhere", "pid": 2**22 - 1}, False),
        ({"host": "elsewhere", "released": True}, True),
        ({"boot_id": "another boot", "pid": 2**22 - 1}, False),
        ({"pid": 2**22 - 1}, True),
        ({"started_ticks": 1}, True),
    ],
)
def test_only_release_or_a_gone_process_of_this_host_and_boot_prove_death(
    tmp_path: Path, changes: dict[str, object], dead: bool
) -> None:
    mine = claimed(tmp_path).owner
    assert (mine.host, mine.pid) == (socket.gethostname(), os.getpid())
    assert msgspec.structs.replace(mine, **changes).provably_dead() is dead


def test_a_process_of_another_container_on_this_host_is_not_known_to_be_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = claimed(tmp_path).owner
    owners._boot_id.cache_clear()
    monkeypatch.setattr(os, "readlink", lambda _path: "pid:[4026532999]")
    try:
        assert not mine.is_here()
        assert not msgspec.structs.replace(mine, pid=2**22 - 1).provably_dead()
    finally:
        owners._boot_id.cache_clear()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_volume_without_file_locks_is_a_mistake_that_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    for _ in range(2):
        with pytest.raises(InvalidSetting, match=r"statestore\.volume\.locks = false"):
            claimed(tmp_path)
    held = claim(tmp_path, what="task 0_0", wait_ms=0, clock=ManualClock(), locks=False)
    assert held.still_ours()
