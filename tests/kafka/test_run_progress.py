"""A continuous run shows how it gets on, on a terminal and in a log, and stdout has its summary."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests import processes
from tests.builders import ROOT, eventually
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import DEADLINE_S, START_MS, STATESTORE, App, name_of

pytestmark = pytest.mark.kafka
ORDERS = 40


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[App]:
    pipeline = "tests.kafka.version_pipelines:priced"
    made = App(kafka, name_of(request.node.name), tmp_path / "state", pipeline)
    made.create_topics(partitions=1, rates=1)
    made.produce_raw([("EUR", b"1", START_MS)], topic="rates")
    # All within the grace, so none of them is joined before later input.
    made.produce_raw([("EUR", b"order", START_MS + i) for i in range(ORDERS)])
    yield made
    made.end_children()


class Begun:
    """A run whose output goes to a file and whose stderr to another, or to a terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", out: Path) -> None:
        self.process = process
        self._out = out
        self.shown = b""

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.shown.decode())

    def ended(self) -> str:
        """What stdout has after SIGTERM."""
        self.process.terminate()
        assert self.process.wait(DEADLINE_S) == 0, self.text()
        return self._out.read_text()


@contextmanager
def begun(app: App, *flags: str, stderr: int) -> Iterator[Begun]:
    out = app.state_dir.parent / "out.txt"
    variables = {PREFIX_VARIABLE: app.name, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    with out.open("wb") as stdout:
        process = subprocess.Popen(
            [STATESTORE, "run", "--run-for=300s", *app.flags(), *flags],
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, "TERM": "xterm", **variables},
        )
        try:
            yield Begun(process, out)
        finally:
            process.kill()
            process.wait(DEADLINE_S)


def told(app: App, *words: str) -> str:
    """What a command prints."""
    variables = {PREFIX_VARIABLE: app.name, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    ended = processes.run(
        [STATESTORE, *words], check=True, timeout=DEADLINE_S, env={**os.environ, **variables}
    )
    return ended.stdout


HELD = f"{ORDERS} records held back until later input"
LINE = rf"records/s, 0 records behind, event time [^,]+, last commit [^,]+ ago, {HELD}"


def test_on_a_terminal_one_line_lives_and_stdout_has_the_summary_alone(app: App) -> None:
    terminal, theirs = os.openpty()
    os.set_blocking(terminal, False)
    with begun(app, "--json", stderr=theirs) as run:
        os.close(theirs)

        def seen() -> bool:
            with suppress(BlockingIOError):
                run.shown += os.read(terminal, 65536)
            assert run.process.poll() is None, run.text()
            return re.search(LINE, run.text()) is not None

        eventually(seen, "the line is shown", DEADLINE_S)
        (line,) = run.ended().splitlines()
    os.close(terminal)
    logged = [piece for piece in re.split(r"[\r\n]+", run.text()) if " INFO " in piece]
    assert all(re.match(r"\d{4}-", piece) for piece in logged), "logs stay out of the live line"
    summary = json.loads(line)
    assert (summary["held_records"], summary["records_in"]) == (ORDERS, ORDERS + 1)
    assert summary["held"] == {"priced-buffer": ORDERS}


def test_in_a_log_there_is_a_plain_line_now_and_then(app: App) -> None:
    log = app.state_dir.parent / "log.txt"
    with log.open("wb") as stderr, begun(app, stderr=stderr.fileno()) as run:

        def seen() -> bool:
            assert run.process.poll() is None, log.read_text()
            return re.search(rf"INFO statestore: [0-9,]+ {LINE}\n", log.read_text()) is not None

        eventually(seen, "the line is logged", DEADLINE_S)
        out = run.ended()
    assert out.rstrip().endswith(f"{HELD} (priced-buffer {ORDERS})"), "people are told at the end"
    assert f"False, {ORDERS} records held back" in out, "it had no end to reach"
    assert "\x1b" not in log.read_text()
    status = json.loads(told(app, "status", *app.flags()[:4], "--json"))
    assert (status["held_records"], status["held"]) == (ORDERS, {"priced-buffer": ORDERS})
    assert status["lag_records"] == 0, "no lag tells of them"


def test_a_run_has_caught_up_with_its_inputs_and_says_what_is_held_back_nevertheless(
    app: App,
) -> None:
    """Another run alone changes nothing."""
    for _ in range(2):
        summary = app.drained()
        assert (summary["caught_up"], summary["held_records"]) == (True, ORDERS)
        assert summary["held"] == {"priced-buffer": ORDERS}
    assert f"True, {ORDERS} records held back" in told(app, "run", *app.flags())
    assert f"{HELD} (priced-buffer {ORDERS})" in told(app, "status", *app.flags()[:4])
