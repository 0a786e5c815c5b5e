"""The pipeline of the kill tests, in which one partition waits at its first record for a file.

It needs nothing of this checkout, and may be sent to workers as a file.
"""

import os
import threading
from pathlib import Path
from typing import Any

import statestore as ss
from statestore.model.records import Record
from statestore.testing.drills.workload import Pass, over

TOPICS_VARIABLE = "GATED_TOPICS"
GATE_VARIABLE = "GATE"
"""Names the file that opens the gate; `<file>.reached` says that a task waits at it."""
HELD_PARTITION = 1


class GatedPass(Pass):
    """Waits before the first record of the held partition."""

    def __init__(self, context: ss.ProcessorContext[Any, Any]) -> None:
        super().__init__(context)
        self._waits = context.task_id.partition == HELD_PARTITION

    def process(self, record: Record[str, int]) -> None:
        if self._waits:
            gate, pause = Path(os.environ[GATE_VARIABLE]), threading.Event()
            gate.with_suffix(".reached").write_text(str(os.getpid()), encoding="utf-8")
            while not gate.exists():
                pause.wait(0.01)
            self._waits = False
        super().process(record)


def topology() -> ss.Topology:
    return over(os.environ[TOPICS_VARIABLE], GatedPass)
