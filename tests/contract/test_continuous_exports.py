"""Exports that a run makes by itself, over a broker in memory: when, and what ends one.

Shows I18.
"""

import threading
from collections.abc import Iterator

import pytest

from statestore import faults
from statestore.faults import CrashPoint
from statestore.operations.exports.catalog import Retention
from statestore.operations.exports.continuous_exports import ContinuousExports
from statestore.runtime import Runtime
from statestore.settings import Settings
from tests.builders import DEADLINE_S, eventually
from tests.contract.export_rig import ExportRig
from tests.relocation_rig import in_memory_folder


@pytest.fixture
def rig() -> Iterator[ExportRig]:
    with in_memory_folder() as folder:
        rig = ExportRig(folder)
        rig.send(*((f"k{n}", str(n)) for n in range(50)))
        rig.drain()
        yield rig
    faults.on_reach(None)


def every(rig: ExportRig, interval_ms: int) -> Runtime:
    settings = rig.runtime.settings.to_mapping()
    more = {"statestore.export.interval.ms": interval_ms}
    return rig.runtime.with_settings(Settings.of({**settings, **more}))


def test_a_continuous_run_exports_again_and_again(rig: ExportRig) -> None:
    with ContinuousExports(every(rig, 1), continuous=True):
        eventually(lambda: len(rig.exports.ids()) > 2, "it has exported three times")
    assert len(set(rig.exported().items())) == 50


@pytest.mark.parametrize(("interval_ms", "continuous"), [(0, True), (0, False), (1, True)])
def test_nothing_is_exported_at_the_end_of_a_continuous_run_or_unasked(
    rig: ExportRig, interval_ms: int, continuous: bool
) -> None:
    exports = ContinuousExports(every(rig, interval_ms), continuous=continuous)
    exports.at_end()
    assert rig.exports.ids() == []


def test_a_bounded_run_exports_once_the_newest_export_is_as_old_as_the_interval(
    rig: ExportRig,
) -> None:
    exports = ContinuousExports(every(rig, 60_000), continuous=False)
    for advanced_ms, wanted in ((0, 1), (59_000, 1), (2_000, 2)):
        rig.tasks.clock.advance(advanced_ms)
        with exports:
            pass
        exports.at_end()
        assert len(rig.exports.ids()) == wanted


def test_the_end_of_a_run_gives_its_export_up_between_two_files(rig: ExportRig) -> None:
    exports, reached = ContinuousExports(every(rig, 1), continuous=True), threading.Event()

    def hold(point: CrashPoint) -> None:
        if point is CrashPoint.EXPORT_FILE_STORED:
            reached.set()
            exports._ending.wait(DEADLINE_S)

    faults.on_reach(hold)
    with exports:
        assert reached.wait(DEADLINE_S)
    assert rig.exports.ids() == []
    faults.on_reach(None)
    rig.export()
    assert len(rig.exports.prune(Retention(1)).kept) == 1, "no lease is left"
