"""The special drills: what may happen to runs besides a death at a crash point.

Each ends with the application whole again, or marked as spoilt, so that the next drill gets a new
one.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from statestore.errors import Fenced, HostFailure, Locked, Misuse
from statestore.testing.drills.drill_plan import Special
from statestore.testing.drills.points import NO_LOCKS, Met, back, damage
from statestore.testing.drills.scratch import LOT, ChildEnd, Scratch

_CONTINUE: Final = "--set=processing.exception.handler=continue"
_SMALL: Final = "48m"
_SNAPSHOTS: Final = 5


class OwnBroker(Protocol):
    """A broker that was started for the drill, so that the drill may stop it."""

    def restart(self) -> None: ...


def drilled(special: Special, scratch: Scratch, broker: OwnBroker | None) -> Met:
    """Do a special drill, start the application again, and look for faults."""
    match special:
        case Special.BROKER_RESTART if broker is None:
            return _not("the broker was not started by this drill: leave out --bootstrap-servers")
        case Special.BROKER_RESTART:
            assert broker is not None
            return _broker_restart(scratch, broker)
        case _:
            return _SPECIALS[special](scratch)


def _zombie(scratch: Scratch) -> Met:
    """Stop an owner, let another take over, continue it: it must end fenced and harm nothing."""
    with scratch.running(NO_LOCKS) as stopped:
        scratch.produce()
        stopped.send(signal.SIGSTOP)
        scratch.produce()
        second = scratch.run(NO_LOCKS)
        wrong = _unless_done(second, "the owner that took over")
        scratch.produce(LOT // 4)
        stopped.send(signal.SIGCONT)
        end = stopped.ended(60.0)
    if end.code != Fenced.exit_code:
        wrong.append(f"the zombie ends with {end.code}, not {Fenced.exit_code}: {end.tail()}")
    met = back(scratch, "stopped, taken over from, continued", NO_LOCKS)
    return met._replace(findings=wrong + met.findings)


def _broker_restart(scratch: Scratch, broker: OwnBroker) -> Met:
    scratch.produce(5 * LOT)
    child = scratch.start()
    scratch.await_claim(child)
    if not child.outlives(0.2):
        return _not("the run had ended before the broker was stopped")
    broker.restart()
    end = child.ended()
    scratch.produce()
    met = back(scratch, f"broker restarted under a run, which ended with {end.code}")
    if end.code is None:
        met.findings.insert(0, f"the run did not end after the restart: {end.tail()}")
    return met


def _disk_full(scratch: Scratch) -> Met:
    """Fill the volume under a run, which must keep its files and go on when there is room."""
    try:
        with _small_volume(scratch.state_dir) as volume:
            scratch.produce()
            filler = volume / "filler"
            _fill(filler)
            full = scratch.run()
            filler.unlink()
            if full.code == 0:
                return _not("the run needed no more room than there was")
            met = back(scratch, f"no space left; the run ended with {full.code}")
            if full.code != HostFailure.exit_code:
                met.findings.insert(0, f"not as a failure of the host: {full.tail()}")
            return met
    except (OSError, subprocess.CalledProcessError) as error:
        return _not(f"no volume of its own could be mounted, which takes root: {error}")


def _unreadable_file(scratch: Scratch) -> Met:
    """Flip a byte of stored rows: a store that reads it goes to quarantine and is restored."""
    before = scratch.quarantined()
    if not damage(scratch):
        return _not("the stores have no file yet")
    scratch.produce()
    met = back(scratch, "a byte flipped in every file of rows")
    if scratch.quarantined() == before and not met.findings:
        return met._replace(killed=False, happened="nothing read the damaged blocks")
    return met


def _truncated_changelog(scratch: Scratch) -> Met:
    """Purge half a changelog, then all of it: no start may lose the store without saying so."""
    log = f"{scratch.application_id}-counts-changelog"
    scratch.tools.truncate(log, 0.5)
    scratch.produce()
    met = back(scratch, "half the changelog purged, then all of it")
    if met.findings:
        return met
    rows = scratch.tools.rows("counts")
    scratch.tools.truncate(log, 1.0)
    scratch.spoilt = "its changelog is gone"
    refused = scratch.run()
    kept = scratch.tools.rows("counts")
    if refused.code not in {0, Misuse.exit_code}:
        met.findings.append(f"without a changelog it ends with {refused.code}: {refused.tail()}")
    if kept != rows:
        met.findings.append(f"{len(rows)} rows became {len(kept)} without a word")
    return met


def _two_starters(scratch: Scratch) -> Met:
    """Start one application twice at once: one run waits for the other, or is refused."""
    scratch.produce(2 * LOT)
    both = [scratch.start(), scratch.start()]
    ends = [child.ended() for child in both]
    codes = sorted(str(end.code) for end in ends)
    wrong = [
        f"one ends with {end.code}: {end.tail()}"
        for end in ends
        if end.code not in {0, Locked.exit_code}
    ]
    if all(end.code != 0 for end in ends):
        wrong.append("neither of them did the work")
    met = back(scratch, f"started twice at once; they ended with {' and '.join(codes)}")
    return met._replace(findings=wrong + met.findings)


def _rollback_export_reload(scratch: Scratch) -> Met:
    """Ask for snapshots while records are passed over, then kill the owner and start it again."""
    wrong: list[str] = []
    scratch.spoilt = "its input holds poison"
    with scratch.running(_CONTINUE) as child:
        for _ in range(_SNAPSHOTS):
            scratch.produce(LOT // 2, poisonous=True)
            wrong += scratch.tools.snapshot_findings("counts")
        scratch.produce(LOT // 2, poisonous=True)
        alive = child.alive()
        child.end()
    if not alive:
        wrong.append("the run did not live through the poison")
    wrong += scratch.tools.snapshot_findings("counts")
    happened = f"{_SNAPSHOTS} snapshots while {scratch.ledger.poison} records were passed over"
    met = back(scratch, f"{happened}, then killed", _CONTINUE)
    return met._replace(findings=wrong + met.findings)


_SPECIALS: Final[dict[Special, Callable[[Scratch], Met]]] = {
    Special.ZOMBIE: _zombie,
    Special.DISK_FULL: _disk_full,
    Special.UNREADABLE_FILE: _unreadable_file,
    Special.TRUNCATED_CHANGELOG: _truncated_changelog,
    Special.TWO_STARTERS: _two_starters,
    Special.ROLLBACK_EXPORT_RELOAD: _rollback_export_reload,
}


@contextmanager
def _small_volume(folder: Path) -> Iterator[Path]:
    """Put `folder` and its content on a small volume, and back on the large one afterwards."""
    if os.geteuid() != 0:
        raise PermissionError("this user may not mount")
    aside = folder.with_name(f"{folder.name}.aside")
    folder.rename(aside)
    folder.mkdir()
    mounted = False
    try:
        command = ["mount", "-t", "tmpfs", "-o", f"size={_SMALL}", "tmpfs", str(folder)]
        subprocess.run(command, check=True, capture_output=True)
        mounted = True
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        yield folder
        shutil.rmtree(aside)
        shutil.copytree(folder, aside)
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True, capture_output=True)
        shutil.rmtree(folder)
        aside.rename(folder)


def _fill(path: Path) -> None:
    """Write a file that takes all the space there is."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


def _unless_done(end: ChildEnd, who: str) -> list[str]:
    return [] if end.code == 0 else [f"{who} ends with {end.code}: {end.tail()}"]


def _not(why: str) -> Met:
    return Met(killed=False, happened=why, recovery=None, findings=[])
