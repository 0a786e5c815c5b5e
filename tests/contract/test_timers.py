"""Timers of processors in the stream tasks of production: when they fire, in which order (I40)."""

import random
from collections.abc import Iterator
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, RecordFailed, UnknownStore
from statestore.testing.driver import TopologyTestDriver
from statestore.topology.processors import timers

STREAM, WALL = ss.PunctuationType.STREAM_TIME, ss.PunctuationType.WALL_CLOCK_TIME
TIMERS = ss.timer_store("timers", key_serde=serdes.STRING)
COUNTS = ss.persistent_key_value_store("counts", key_serde=serdes.STRING, value_serde=serdes.INT64)


class Obeying:
    """Does what the values of records say, and tells what fires.

    `at 30`, `at 30 name`, `wall 30`, `cancel`, `cancel name`; a text of several goes by `;`. A name
    that begins with `every` goes on every 10 ms, up to 3 times; `raise` raises.
    """

    def __init__(self, context: ss.ProcessorContext[str, str]) -> None:
        self.context = context
        self.timers = context.timers(TIMERS)
        self.counts = context.store(COUNTS)

    def process(self, record: ss.Record[str, str]) -> None:
        self.tell(record.key, f"took {record.value}", record.timestamp_ms)
        for command in record.value.split(";"):
            verb, *rest = command.split()
            if verb in ("at", "wall"):
                name = rest[1] if len(rest) > 1 else ""
                kind = STREAM if verb == "at" else WALL
                self.timers.schedule(record.key, int(rest[0]), name=name, kind=kind)
            elif verb == "cancel":
                self.timers.cancel(record.key, name=rest[0] if rest else "")

    def on_timer(self, timer: ss.Timer[str]) -> None:
        if timer.name == "raise":
            raise ValueError("as it was told")
        self.tell(timer.key, f"fired {timer.name}".strip(), timer.time_ms)
        if timer.name.startswith("every"):
            left = self.counts.get(timer.key, 3) - 1
            self.counts.put(timer.key, left)
            if left:
                at = timer.time_ms + 10
                self.timers.schedule(timer.key, at, name=timer.name, kind=timer.kind)

    def tell(self, key: str, what: str, time_ms: int) -> None:
        text = f"{what} @{self.context.stream_time}"
        self.context.forward(ss.Record(key, text, time_ms))


def builder() -> ss.StreamsBuilder:
    return ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)


def obeying() -> ss.Topology:
    b = builder()
    taken = b.stream("in").filter(lambda _, value: value != "passed by")
    taken.process(Obeying, TIMERS, COUNTS, name="obeying").to("out")
    return b.build()


Row = tuple[str, str, int]


def told(driver: TopologyTestDriver) -> list[str]:
    return [f"{r.key} {r.value}" for r in driver.read("out")]


def run(rows: list[Row], sizes: Iterator[int], *, crash: bool = False) -> list[str]:
    """What the processor tells of these records, in batches of these sizes."""
    with TopologyTestDriver(obeying()) as driver:
        start, found = 0, []
        while start < len(rows):
            stop = start + next(sizes)
            driver.pipe_all("in", rows[start:stop])
            found += told(driver)
            if crash:
                driver.crash()
            start = stop
        return found


def ones() -> Iterator[int]:
    while True:
        yield 1


@pytest.mark.parametrize("size", [1, 2, 100])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param(
            [("a", "at 30", 10), ("a", "now", 30), ("b", "now", 31)],
            ["a took at 30 @10", "a took now @30", "a fired @30", "b took now @31"],
            id="between the last record at its time and the first one after it",
        ),
        pytest.param(
            [("a", "at 40", 10), ("a", "at 60", 35), ("a", "now", 50), ("a", "now", 90)],
            ["a took at 40 @10", "a took at 60 @35", "a took now @50", "a fired @60",
             "a took now @90"],
            id="once, when it was scheduled again",
        ),
        pytest.param(
            [("b", "at 20;at 20 x", 10), ("a", "at 20;at 15 y", 10), ("c", "now", 50)],
            ["b took at 20;at 20 x @10", "a took at 20;at 15 y @10", "a fired y @15",
             "a fired @20", "b fired @20", "b fired x @20", "c took now @50"],
            id="in the order of time, key and name",
        ),
        pytest.param(
            [("a", "at 20;at 30 x", 10), ("a", "cancel", 12), ("a", "cancel no", 13),
             ("c", "now", 50)],
            ["a took at 20;at 30 x @10", "a took cancel @12", "a took cancel no @13",
             "a fired x @30", "c took now @50"],
            id="not when it was cancelled",
        ),
        pytest.param(
            [("a", "at 5", 10), ("b", "now", 10), ("b", "at 10", 10), ("c", "passed by", 50)],
            ["a took at 5 @10", "a fired @10", "b took now @10", "b took at 10 @10",
             "b fired @10"],
            id="right after the record if its time has passed, and by records that pass by",
        ),
        pytest.param(
            [("b", "at 15 every", 10), ("a", "at 20 every;at 36", 10), ("c", "now", 50)],
            ["b took at 15 every @10", "a took at 20 every;at 36 @10", "b fired every @15",
             "a fired every @20", "b fired every @25", "a fired every @30", "b fired every @35",
             "a fired @36", "a fired every @40", "c took now @50"],
            id="again and again among others, as time passes at once",
        ),
        pytest.param(
            [("a", "at 20", 10), ("b", "now", 5), ("a", "at 20", 30), ("b", "now", 25)],
            ["a took at 20 @10", "b took now @10", "a fired @20", "a took at 20 @30",
             "a fired @30", "b took now @30"],
            id="by stream time, which late records do not move",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("crash", [False, True], ids=["", "crashing"])
def test_a_timer_by_stream_time_fires(
    rows: list[Row], expected: list[str], size: int, *, crash: bool
) -> None:
    assert run(rows, iter([size] * 9), crash=crash) == expected


class Naive:
    """The same processor, one record at a time, with its timers in a dict."""

    def __init__(self) -> None:
        self.timers: dict[tuple[str, str], int] = {}
        self.counts: dict[str, int] = {}
        self.now: int = -1
        self.told: list[str] = []

    def take(self, key: str, value: str, time: int) -> None:
        after = max(self.now, time)
        self.fire(after)
        self.now = after
        if value == "passed by":
            return
        self.told.append(f"{key} took {value} @{self.now}")
        for command in value.split(";"):
            verb, *rest = command.split()
            name = rest[1] if len(rest) > 1 else ""
            if verb == "at":
                self.timers[key, name] = int(rest[0])
            elif verb == "cancel":
                self.timers.pop((key, rest[0] if rest else ""), None)
        self.fire(self.now)

    def fire(self, before: int) -> None:
        while due := sorted((t, k, n) for (k, n), t in self.timers.items() if t < before):
            time, key, name = due[0]
            del self.timers[key, name]
            self.now = max(self.now, time)
            self.told.append(f"{key} fired {name}".strip() + f" @{self.now}")
            if name.startswith("every"):
                self.counts[key] = left = self.counts.get(key, 3) - 1
                if left:
                    self.timers[key, name] = time + 10


@pytest.mark.parametrize("seed", range(12))
def test_random_timers_fire_as_a_naive_interpreter_says(seed: int) -> None:
    rng = random.Random(seed)
    rows: list[Row] = []
    now = 100
    for _ in range(rng.choice([20, 120])):
        now += rng.choice([0, 0, 1, 3, 40])
        time = now - rng.choice([0, 0, 0, 15])
        names = ["", "x", "every"]
        commands = [
            rng.choice(
                [
                    f"at {time + rng.randint(-5, 60)} {rng.choice(names)}".strip(),
                    f"cancel {rng.choice(names)}".strip(),
                    "now",
                ]
            )
            for _ in range(rng.randint(1, 3))
        ]
        value = "passed by" if rng.random() < 0.2 else ";".join(commands)
        rows.append((rng.choice("abcde"), value, time))
    naive = Naive()
    for row in rows:
        naive.take(*row)
    sizes = (rng.choice([1, 2, 7, 50]) for _ in rows)
    assert run(rows, sizes, crash=rng.random() < 0.5) == naive.told
    assert run(rows, iter([len(rows)])) == naive.told


def test_keys_and_names_of_any_bytes_are_told_apart_and_in_order() -> None:
    keys = ["", "\0", "\0\0", "a", "a\0", "a\0b", "a\x01", "ab", "é", "\U0001f600"]
    names = ["", "\0", "a", "b\0"]
    b = builder()
    b.stream("in").process(Obeying, TIMERS, COUNTS).to("out")
    with TopologyTestDriver(b.build()) as driver:
        rows = [
            (key, ";".join(f"at 20 {name}" for name in names[2:]) + ";at 20", 10) for key in keys
        ]
        random.Random(1).shuffle(rows)
        driver.pipe_all("in", [*rows, ("z", "now", 30)])
        found = [r for r in driver.read("out") if "fired" in r.value]
        keys_fired = [r.key for r in found]
        assert keys_fired == [key for key in sorted(keys, key=str.encode) for _ in range(3)]
        assert [r.value.split()[1] for r in found[:3]] == ["@20", "a", "b\0"]


def test_a_timer_by_the_wall_clock_fires_once_its_time_has_come_and_also_after_a_crash() -> None:
    with TopologyTestDriver(obeying()) as driver:
        driver.pipe("in", "b", "wall 1000", 10)
        driver.pipe("in", "a", "wall 1000;wall 2000 x", 10)
        driver.commit()
        assert [r for r in told(driver) if "fired" in r] == []
        driver.advance_wall_clock(999)
        assert told(driver) == []
        driver.advance_wall_clock(1)
        assert told(driver) == ["a fired @10", "b fired @10"]
        driver.crash()
        driver.advance_wall_clock(5000)
        assert told(driver) == ["a fired x @10"]
        driver.advance_wall_clock(5000)
        assert told(driver) == []


def test_many_timers_that_are_due_fire_in_order_a_bounded_number_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "_AT_ONCE", 7)
    rows = [(f"k{n:03}", f"at {20 + n % 50};wall {20 + n % 50} x", 10) for n in range(200)]
    with TopologyTestDriver(obeying()) as driver:
        driver.pipe_all("in", [*rows, ("z", "every", 30)])
        fired = [row for row in told(driver) if "fired" in row]
        wanted = sorted((20 + n % 50, f"k{n:03}") for n in range(200) if n % 50 < 10)
        assert fired == [f"{key} fired @{time}" for time, key in wanted]
        driver.pipe("in", "z", "every", 90)
        assert len([row for row in told(driver) if "fired" in row]) == 160
        driver.advance_wall_clock(40)
        walls = []
        for _ in range(40):
            walls += told(driver)
            driver.advance_wall_clock(1)
        wanted = sorted((20 + n % 50, f"k{n:03}") for n in range(200))
        assert walls == [f"{key} fired x @90" for _, key in wanted]


def test_many_timers_that_are_due_before_a_record_are_committed_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(timers, "_AT_ONCE", 7)
    rows = [(f"k{n:03}", f"at {20 + n % 50} every", 10) for n in range(200)]
    naive = Naive()
    for row in [*rows, ("z", "now", 500)]:
        naive.take(*row)
    with TopologyTestDriver(obeying(), {"statestore.uncommitted.max.records": 40}) as driver:
        driver.pipe_all("in", rows)
        found = told(driver)
        (task,) = driver._tasks.values()
        before = task.report.commits
        driver.pipe("in", "z", "now", 500)
        assert found + told(driver) == naive.told
        assert task.report.commits - before > 20


HANDLED = {"errors.dead.letter.queue.topic.name": "dead"}


@pytest.mark.parametrize("handler", ["continue", "dead_letter"])
@pytest.mark.parametrize("size", [1, 100])
@pytest.mark.parametrize("verb", ["at", "wall"])
def test_a_timer_that_fails_is_passed_over_and_the_others_fire(
    verb: str, handler: str, size: int
) -> None:
    rows = [
        ("a", f"{verb} 20;{verb} 30 every", 10),
        ("b", f"{verb} 20 raise;{verb} 25", 10),
        ("c", f"{verb} 25", 10),
    ]
    settings = {"processing.exception.handler": handler, **HANDLED}
    with TopologyTestDriver(obeying(), settings) as driver:
        for start in range(0, len(rows) + 1, size):
            driver.pipe_all("in", [*rows, ("z", "now", 100)][start : start + size])
        found = []
        for _ in range(20):
            driver.advance_wall_clock(5)
            found += told(driver)
        fired = [row.partition(" @")[0] for row in found if "fired" in row]
        assert fired == ["a fired", "b fired", "c fired", *["a fired every"] * 3]
        assert [row for row in found if "took" in row][-1:] == ["z took now @100"]
        dead = driver.read("dead")
        assert len(dead) == (handler == "dead_letter")
        for letter in dead:
            headers = dict(letter.headers)
            assert (letter.key, letter.value, letter.timestamp_ms) == (b"b", b"raise", 20)
            assert headers["__streams.errors.store"] == b"timers"
            assert headers["__streams.errors.exception"] == b"ValueError"


def test_a_timer_that_fails_ends_the_run_and_says_which_one() -> None:
    with TopologyTestDriver(obeying()) as driver:
        driver.pipe("in", "b", "at 20 raise", 10)
        with pytest.raises(RecordFailed, match=r"timer of key b'b' at 20.*as it was told"):
            driver.pipe("in", "b", "now", 30)


class Sharing:
    """Two processors share a store: one has timers that write it, the other reads it."""

    def __init__(self, context: ss.ProcessorContext[str, str]) -> None:
        self.context = context
        self.counts = context.store(COUNTS)
        self.timers = context.timers(TIMERS)

    def process(self, record: ss.Record[str, str]) -> None:
        self.timers.schedule(record.key, record.timestamp_ms + 5)

    def on_timer(self, timer: ss.Timer[str]) -> None:
        self.counts.put("n", self.counts.get("n", 0) + 1)


class Reading:
    def __init__(self, context: ss.ProcessorContext[str, str]) -> None:
        self.context = context
        self.counts = context.store(COUNTS)

    def process(self, record: ss.Record[str, str]) -> None:
        self.context.forward(record.replace(value=str(self.counts.get("n", 0))))


@pytest.mark.parametrize("size", [1, 3, 100])
def test_who_shares_a_store_sees_what_timers_wrote_before_each_record(size: int) -> None:
    b = builder()
    stream = b.stream("in")
    stream.filter(lambda key, _: key == "t").process(Sharing, TIMERS, COUNTS)
    stream.filter(lambda key, _: key == "r").process(Reading, COUNTS).to("out")
    rows = [("t", "", 10), ("r", "", 12), ("r", "", 15), ("r", "", 16), ("t", "", 16),
            ("r", "", 21), ("r", "", 22)]  # fmt: skip
    with TopologyTestDriver(b.build()) as driver:
        for start in range(0, len(rows), size):
            driver.pipe_all("in", rows[start : start + size])
        assert [r.value for r in driver.read("out")] == ["0", "0", "1", "1", "2"]


def test_the_timer_of_a_key_can_be_looked_up() -> None:
    seen: list[Any] = []

    class Looking(Obeying):
        def process(self, record: ss.Record[str, str]) -> None:
            seen.append(self.timers.get(record.key))
            super().process(record)
            seen.append(self.timers.get(record.key))

        def on_timer(self, timer: ss.Timer[str]) -> None:
            seen.append((timer, self.timers.get(timer.key)))

    b = builder()
    b.stream("in").process(Looking, TIMERS, COUNTS)
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe("in", "a", "at 20;wall 90", 10)
        driver.commit()
        driver.pipe("in", "a", "at 30", 11)
        driver.pipe("in", "b", "cancel", 31)
    wall, event = ss.Timer("a", "", 90, WALL), ss.Timer("a", "", 30, STREAM)
    assert seen == [None, wall, wall, event, (event, None), None, None]


@pytest.mark.parametrize(
    ("key", "time", "said"),
    [
        (None, 20, "needs a key"),
        (7, 20, "TIMER\\(STRING\\)"),
        ("a", 1 << 70, "64 bits"),
        ("a", "soon", "pass milliseconds"),
        ("a", 1.5, "pass milliseconds"),
    ],
)
def test_a_timer_without_key_or_time_is_an_error_of_the_record(
    key: Any, time: Any, said: str
) -> None:
    class Wrong(Obeying):
        def process(self, record: ss.Record[str, str]) -> None:
            self.timers.schedule(key, time)

    b = builder()
    b.stream("in").process(Wrong, TIMERS, COUNTS)
    topology = b.build()
    with (
        TopologyTestDriver(topology) as driver,
        pytest.raises(ss.errors.StateStoreError, match=said),
    ):
        driver.pipe("in", "a", "", 10)
    with TopologyTestDriver(topology, {"processing.exception.handler": "continue"}) as driver:
        driver.pipe("in", "a", "", 10)


@pytest.mark.parametrize("name", [None, 7, b"x"])
def test_a_name_that_is_no_text_is_an_error_that_says_so(name: Any) -> None:
    class Wrong(Obeying):
        def process(self, record: ss.Record[str, str]) -> None:
            self.timers.cancel(record.key, name=name)

    b = builder()
    b.stream("in").process(Wrong, TIMERS, COUNTS)
    with TopologyTestDriver(b.build()) as driver, pytest.raises(RecordFailed, match=r"name .* str"):
        driver.pipe("in", "a", "", 10)


def test_a_timer_that_would_fire_without_end_is_an_error() -> None:
    class Endless(Obeying):
        def on_timer(self, timer: ss.Timer[str]) -> None:
            self.timers.schedule(timer.key, timer.time_ms)

    b = builder()
    b.stream("in").process(Endless, TIMERS, COUNTS)
    with TopologyTestDriver(b.build()) as driver, pytest.raises(RecordFailed, match="without end"):
        driver.pipe_all("in", [("a", "at 20", 10), ("a", "now", 30)])


class Mute:
    def __init__(self, _context: ss.ProcessorContext[Any, Any]) -> None: ...
    def process(self, record: ss.Record[str, str]) -> None: ...
    def process_batch(self, records: Any) -> None: ...


class Batching(Mute):
    def on_timer(self, timer: ss.Timer[str]) -> None: ...


def test_stores_of_timers_are_refused_where_they_cannot_work() -> None:
    b = builder()
    stream = b.stream("in")
    for verb in ("process_batch", "process_values"):
        with pytest.raises(InvalidTopology, match=f"{verb}.*store 'timers'.*use process"):
            getattr(stream, verb)(Batching, TIMERS)
    other = ss.timer_store("other")
    with pytest.raises(InvalidTopology, match="one store of timers, not 2"):
        stream.process(Batching, TIMERS, other)
    stream.process(Batching, TIMERS)
    with pytest.raises(InvalidTopology, match="'timers'"):
        stream.process(Batching, TIMERS)
    b = builder()
    b.stream("in").process(Mute, TIMERS)
    with pytest.raises(InvalidTopology, match="has no on_timer"):
        TopologyTestDriver(b.build())


@pytest.mark.parametrize(
    "wrong",
    [lambda c: c.store(TIMERS), lambda c: c.timers(ss.timer_store("other"))],
    ids=["as any store", "another"],
)
def test_stores_of_timers_are_taken_as_such_and_by_their_processor(wrong: Any) -> None:
    class Taking(Obeying):
        def __init__(self, context: ss.ProcessorContext[str, str]) -> None:
            wrong(context)

    b = builder()
    b.stream("in").process(Taking, TIMERS)
    with pytest.raises(UnknownStore, match="timers"):
        TopologyTestDriver(b.build())
    b = builder()
    b.stream("in").process(Obeying, COUNTS)
    with pytest.raises(UnknownStore, match="timer_store"):
        TopologyTestDriver(b.build())
