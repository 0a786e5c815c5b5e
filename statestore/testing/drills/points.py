"""How a drill brings a run to a crash point, kills it there, and starts it again.

Every run reaches most crash points. Others are reached only after something was damaged, moved or
asked for: a recipe, chosen by the prefix of the point's name, says what to do first and which
command reaches the point.
"""

import random
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from statestore.faults import CrashPoint
from statestore.testing.drills.scratch import MODULE, ChildEnd, Scratch

_LATER: Final = 4
"""The visit at which to die at a point of the commit, so that the run has committed before."""
_MISSES: Final = 3
_OF_GENERATED: Final = (
    "clone.",
    "export.",
    "import.",
    "links.",
    "relocate.",
    "snapshot.",
    "upgrade.",
    "verify.",
)
NO_LOCKS: Final = "--set=statestore.volume.locks=false"
_PRUNES: Final = (
    CrashPoint.EXPORT_PRUNE_LEASED,
    CrashPoint.EXPORT_MANIFEST_REMOVED,
    CrashPoint.EXPORT_FILES_REMOVED,
)


class Met(NamedTuple):
    """What a drill did. If `killed` is False, the kill missed, and `happened` says why."""

    killed: bool
    happened: str
    recovery: ChildEnd | None
    findings: list[str]


class _Tried(NamedTuple):
    """A child with an armed crash point. If `died` is False, it ended without reaching it."""

    died: bool
    at: str
    end: ChildEnd

    @property
    def happened(self) -> str:
        return f"killed at {self.at}"


Recipe = Callable[[Scratch, str], Met]


def at_point(scratch: Scratch, point: CrashPoint, rng: random.Random) -> Met:
    """Let a run die at a crash point, run again, and look for faults."""
    if scratch.clone is not None and point.startswith(_OF_GENERATED):
        happened = "takes the generated workload: leave out --workload clone"
        return Met(killed=False, happened=happened, recovery=None, findings=[])
    recipe = next((r for prefix, r in _RECIPES.items() if point.startswith(prefix)), _on_the_way)
    visit = _LATER + rng.randrange(4) if point.startswith("commit.") else 1
    return recipe(scratch, f"{point}:{visit}")


def at_moment(scratch: Scratch, rng: random.Random, span_s: float) -> Met:
    """Kill a run at a random moment between its claim and its end, about `span_s` later."""
    for _ in range(_MISSES if scratch.clone is None else 1):
        scratch.produce()
        child = scratch.start()
        scratch.await_claim(child)
        wait_s = rng.uniform(0.0, span_s)
        if child.outlives(wait_s):
            child.end()
            return back(scratch, f"killed {wait_s:.3f} s after its claim")
        span_s /= 2
        child.ended()
    return Met(False, "every run had ended before the moment came", None, scratch.findings())


def span_of_a_run(scratch: Scratch) -> float:
    """The seconds from the claim to the end of a run that has one lot of records to process."""
    scratch.produce()
    child = scratch.start()
    scratch.await_claim(child)
    claimed_s = time.monotonic()
    child.ended()
    return time.monotonic() - claimed_s


def back(scratch: Scratch, happened: str, *more: str) -> Met:
    """Run again after a death, and say what is wrong after that run."""
    again = scratch.run(*more)
    wrong = []
    if again.code != 0:
        ended = "does not end" if again.code is None else f"ends with {again.code}"
        wrong.append(f"the run after it {ended}: {again.tail()}; log: {again.log}")
    elif again.summary is None or not again.summary["caught_up"]:
        wrong.append("the run after it does not catch up")
    return Met(True, happened, again, wrong + scratch.findings())


def _on_the_way(scratch: Scratch, crash_at: str, *more: str) -> Met:
    scratch.produce()
    tried = _try(scratch, crash_at, *more)
    return back(scratch, tried.happened, *more) if tried.died else _missed(scratch, tried)


def _taken_over(scratch: Scratch, crash_at: str) -> Met:
    """Without file locks, every start takes over in a folder of its own."""
    return _on_the_way(scratch, crash_at, NO_LOCKS)


def _damaged(scratch: Scratch, crash_at: str) -> Met:
    damage(scratch)
    return _on_the_way(scratch, crash_at)


def _moved(scratch: Scratch, crash_at: str) -> Met:
    """Run a topology whose sub-topologies have other numbers; the next such drill goes back."""
    there, back = f"{MODULE}:moved", f"{MODULE}:topology"
    scratch.pipeline = there if scratch.pipeline == back else back
    return _on_the_way(scratch, crash_at)


def _asked(scratch: Scratch, crash_at: str) -> Met:
    """Kill a command that takes a snapshot; while an owner lives it has to ask for one."""
    look = ("stores", "count", "counts", "--json")
    scratch.produce()
    if crash_at.startswith(CrashPoint.SNAPSHOT_REQUESTED):
        with scratch.running() as child:
            tried = _try(scratch, crash_at, *scratch.where(), command=look)
            child.send(signal.SIGTERM)
            child.ended()
    else:
        tried = _try(scratch, crash_at, *scratch.where(), command=look)
    return back(scratch, tried.happened) if tried.died else _missed(scratch, tried)


def _upgraded(scratch: Scratch, crash_at: str) -> Met:
    """Kill the upgrade of a plain store; the store is then restored from its changelog."""
    command = ("upgrade-to-versioned", "counts", "--history-retention=30d")
    tried = _try(scratch, crash_at, *_reach(scratch), command=command)
    if not tried.died:
        return _missed(scratch, tried)
    again = scratch.run(*_reach(scratch), command=command)
    if again.code != 0:
        wrong = [f"the command again ends with {again.code}: {again.tail()}"]
        return Met(True, tried.happened, again, wrong)
    return back(scratch, tried.happened)


def _audited(scratch: Scratch, crash_at: str) -> Met:
    return _again(scratch, _try(scratch, crash_at, *_reach(scratch), command=("audit",)), "audit")


def _exported(scratch: Scratch, crash_at: str) -> Met:
    """Kill an export, which is then made again, or one that prunes an old export."""
    target = _target(scratch)
    scratch.produce()
    scratch.run()
    if crash_at.startswith(_PRUNES):
        for _ in range(2):
            scratch.run(*_reach(scratch), target, command=("exports", "create"))
            scratch.produce()
            scratch.run()
        prune = ("exports", "prune", "--keep=1")
        tried = _try(scratch, crash_at, *scratch.where(), target, command=prune)
        return _again(scratch, tried, "exports", "verify", target)
    tried = _try(scratch, crash_at, *_reach(scratch), target, command=("exports", "create"))
    met = _again(scratch, tried, "exports", "create", target)
    verified = scratch.run(*scratch.where(), target, command=("exports", "verify"))
    if verified.code != 0:
        met.findings.append(f"the export made again is not whole: {verified.tail()}")
    return met


def _verified(scratch: Scratch, crash_at: str) -> Met:
    """Damage a file of an export, and kill the verification that sets it aside."""
    target = _target(scratch)
    scratch.produce()
    scratch.run()
    export, verify = ("exports", "create"), ("exports", "verify")
    scratch.run(*_reach(scratch), target, command=export)
    folder = Path(target.partition("=")[2].partition("=")[2]) / scratch.application_id / "files"
    _flip(max((path for path in folder.rglob("*") if path.is_file()), key=_size))
    tried = _try(scratch, crash_at, *scratch.where(), target, command=verify)
    if not tried.died:
        return _missed(scratch, tried)
    (folder.parent / "prunings").rename(folder.parent / "prunings-of-the-dead")
    ends = [scratch.run(*_reach(scratch), target, command=one) for one in (verify, export, verify)]
    wrong = [f"a call ends with {end.code}: {end.tail()}" for end in ends[1:] if end.code != 0]
    if ends[0].code == 0:
        wrong.append("the damage is not seen again")
    return Met(True, tried.happened, ends[2], wrong + scratch.findings())


def _imported(scratch: Scratch, crash_at: str) -> Met:
    """Remove the state, and kill the command that restores it from an export."""
    target = _target(scratch)
    scratch.run(*_reach(scratch), target, command=("exports", "create"))
    scratch.produce()
    for task in scratch.layout.tasks():
        shutil.rmtree(scratch.layout.stores_dir(task), ignore_errors=True)
    restore = ("exports", "restore")
    tried = _try(scratch, crash_at, *_reach(scratch), target, command=restore)
    again = scratch.run(*_reach(scratch), target, command=restore)
    wrong = [] if again.code == 0 else [f"again it ends with {again.code}: {again.tail()}"]
    met = back(scratch, tried.happened) if tried.died else _missed(scratch, tried)
    return met._replace(findings=wrong + met.findings)


def _linked(scratch: Scratch, crash_at: str) -> Met:
    """Remove the state, link it to an export, and kill what makes the links or copies the files."""
    target = _target(scratch)
    scratch.produce()
    scratch.run()
    scratch.run(*_reach(scratch), target, command=("exports", "create"))
    scratch.produce()
    for task in scratch.layout.tasks():
        shutil.rmtree(scratch.layout.stores_dir(task), ignore_errors=True)
    restore = ("exports", "restore", "--mounted")
    if crash_at.startswith(CrashPoint.LINKS_LEASED):
        tried = _try(scratch, crash_at, *_reach(scratch), target, command=restore)
        again = scratch.run(*_reach(scratch), target, command=restore)
    else:
        again = scratch.run(*_reach(scratch), target, command=restore)
        tried = _try(scratch, crash_at)
    wrong = [] if again.code == 0 else [f"the restore ends with {again.code}: {again.tail()}"]
    met = back(scratch, tried.happened) if tried.died else _missed(scratch, tried)
    return met._replace(findings=wrong + met.findings)


def _cloned(scratch: Scratch, crash_at: str) -> Met:
    """Kill the making of a clone, which is then created again; the original does not change."""
    flags = [*scratch.deployment(), _target(scratch)]
    clone_id = f"{scratch.application_id}-clone-{scratch.ledger.produced}"
    scratch.run(*flags, command=("exports", "create", "--for-clone"))
    make, drop = ("exports", "restore", f"--as={clone_id}"), ("exports", "drop-clone", clone_id)
    tried = _try(scratch, crash_at, *flags, command=make)
    if not tried.died:
        return _missed(scratch, tried)
    if crash_at.startswith(CrashPoint.CLONE_FINISHED):
        scratch.run(*flags, command=drop)  # it was complete already
    ends = [scratch.run(*flags, command=command) for command in (make, drop)]
    wrong = [f"after it a call ends with {e.code}: {e.tail()}" for e in ends if e.code != 0]
    return Met(True, tried.happened, ends[0], wrong + scratch.findings())


def _again(scratch: Scratch, tried: _Tried, *command: str) -> Met:
    """Call a command that died again; the application must not have changed."""
    if not tried.died:
        return _missed(scratch, tried)
    end = scratch.run(*_reach(scratch), command=command)
    wrong = [] if end.code == 0 else [f"{' '.join(command)} ends with {end.code}: {end.tail()}"]
    return Met(True, tried.happened, end, wrong + scratch.findings())


def _reach(scratch: Scratch) -> list[str]:
    return [*scratch.where(), *scratch.flags]


def _target(scratch: Scratch) -> str:
    """A target for each drill: what died holds its lease for some minutes."""
    return f"--set=statestore.export.target={scratch.folder}/exports-{scratch.ledger.produced}"


_RECIPES: Final[dict[str, Recipe]] = {
    "takeover.": _taken_over,
    "quarantine.": _damaged,
    "relocate.": _moved,
    "snapshot.": _asked,
    "upgrade.": _upgraded,
    "audit.": _audited,
    "clone.": _cloned,
    "export.": _exported,
    "import.": _imported,
    "links.": _linked,
    "verify.": _verified,
}


def damage(scratch: Scratch) -> int:
    """Flip a byte in the first block of every data file, and return how many files there are."""
    files = [
        path
        for task in scratch.layout.tasks()
        for path in scratch.layout.stores_dir(task).rglob("*.sst")
        if not path.is_symlink()  # into an export
    ]
    for path in files:
        _flip(path)
    return len(files)


def _size(path: Path) -> int:
    return path.stat().st_size


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[20] ^= 1
    path.write_bytes(content)


def _try(scratch: Scratch, crash_at: str, *more: str, command: Sequence[str] = ()) -> _Tried:
    """Run a child that should die at a crash point; a token file tells whether a process died."""
    token = scratch.folder / "token"
    token.unlink(missing_ok=True)
    end = scratch.run(*more, crash_at=f"{crash_at}:{token}", command=command)
    return _Tried(token.exists(), crash_at, end)


def _missed(scratch: Scratch, tried: _Tried) -> Met:
    happened = f"{tried.at} was not reached; it ended with {tried.end.code}: {tried.end.tail()}"
    return Met(False, happened, None, scratch.findings())
