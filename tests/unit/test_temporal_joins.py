"""Joins of a stream with a table that keeps history: the version as of the record's own time (V10).

Lines run in the order of arrival: `T a1@10` is a table update, `S ax@5` a stream record of key a.

Shows I25.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse
from statestore.operations.start.topics import internal_topics
from statestore.testing import TopologyTestDriver
from tests.builders import table_rows

Made = list[tuple[str, str, int]]


def joined(
    grace_ms: int = 0, *, left: bool = False, retention_ms: int = 100, **fields: Any
) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=fields.get("serde", serdes.STRING))
    history = ss.Materialized("rates", history_retention=retention_ms)
    table = b.table("table", materialized=history, name="rates-table")
    stream = b.stream("stream", name="orders")
    join = stream.left_join if left else stream.join
    show: Callable[[Any, Any], Any] = fields.get("show", lambda a, b: f"{a}+{b}")
    join(table, show, grace=grace_ms, name="priced").to("out")
    table.to_stream(name="updates").to("updates")
    return b.build()


def play(driver: TopologyTestDriver, line: str) -> str:
    """Pipe every word, one commit each; what came out, in order."""
    for side, word in zip(*[iter(line.split())] * 2, strict=True):
        key, value, time = word[0], word[1:].partition("@")[0], int(word.partition("@")[2])
        topic = {"T": "table", "S": "stream"}[side]
        driver.pipe(topic, key, None if value == "-" else value, time)
    return " ".join(f"{r.key}:{r.value}@{r.timestamp_ms}" for r in driver.read("out")) or "-"


LINES = """
    | arrival                                     | inner join             | left join
    | T kb0@0 S ka1@1 T kb3@3 S ka4@4             | k:a1+b0@1 k:a4+b3@4    | k:a1+b0@1 k:a4+b3@4
    | T kb0@0 T kb3@3 S ka4@4 S ka2@2             | k:a4+b3@4 k:a2+b0@2    | k:a4+b3@4 k:a2+b0@2
    | S kx@5 T k1@6                               | -                      | k:x+None@5
    | T k1@6 S kx@5                               | -                      | k:x+None@5
    | T k1@6 T k-@8 S kx@7 S ky@9                 | k:x+1@7                | k:x+1@7 k:y+None@9
    | T k5@50 T k1@10 S kx@20 S ky@60             | k:x+1@20 k:y+5@60      | k:x+1@20 k:y+5@60
    | T k1@10 T k2@200 T j1@300 S kx@150 S ky@250 | k:y+2@250              | k:x+None@150 k:y+2@250
    | T k@10 S kx@20                              | k:x+@20                | k:x+@20
"""


@pytest.mark.parametrize(("line", "inner", "outer"), table_rows(LINES))
def test_a_record_meets_the_version_valid_at_its_own_time(
    line: str, inner: str, outer: str
) -> None:
    with TopologyTestDriver(joined()) as driver:
        assert play(driver, line) == inner
    with TopologyTestDriver(joined(left=True)) as driver:
        assert play(driver, line) == outer


@pytest.mark.parametrize("value", [0, "", False, []])
def test_falsy_values_of_the_table_are_joined(value: Any) -> None:
    topology = joined(serde=serdes.JSON, show=lambda a, b: [a, b])
    with TopologyTestDriver(topology) as driver:
        driver.pipe("table", "k", value, 10)
        driver.pipe("stream", "k", value, 10)
        assert [r.value for r in driver.read("out")] == [[value, value]]


def test_an_update_out_of_order_changes_history_and_hands_nothing_on() -> None:
    with TopologyTestDriver(joined()) as driver:
        play(driver, "T k5@150 T k1@110 T k9@150 T k-@160 T k7@155 T k3@20 T j1@110")
        updates = [(r.key, r.value, r.timestamp_ms) for r in driver.read("updates")]
        assert updates == [("k", "5", 150), ("k", "9", 150), ("k", None, 160), ("j", "1", 110)]
        history = driver.store("rates").history("k", descending=False)
        assert [(v.value, v.timestamp_ms) for v in history] == [("1", 110), ("9", 150), ("7", 155)]


GRACE = """
    | arrival                                | out
    | T k1@10 S kx@20                        | -
    | T k1@10 S kx@20 S ky@29                | -
    | T k1@10 S kx@20 S ky@30                | k:x+1@20
    | T k1@10 S kx@20 T k2@15 S ky@30        | k:x+2@20
    | T k1@10 S kx@20 T j9@29                | -
    | T k1@10 S kx@20 T j9@30                | k:x+1@20
    | T k1@10 S kx@20 T k2@30 T k3@20        | k:x+1@20
    | T k1@10 S kx@20 S k-@99 T k2@15 S jz@40 | k:x+2@20
    | T k1@10 S kx@20 S ky@19 S jz@99        | k:y+1@19 k:x+1@20
    | T k1@10 S jz@99 S kx@20 S ky@88        | k:x+1@20 k:y+1@88
    | T k1@10 S kx@20 S ky@20 S jz@99        | k:x+1@20 k:y+1@20
    | S kx@20 T k1@10 S jz@99                | k:x+1@20
"""


@pytest.mark.parametrize(("line", "out"), table_rows(GRACE))
def test_with_grace_a_record_waits_until_stream_time_has_passed_it_by_as_much(
    line: str, out: str
) -> None:
    with TopologyTestDriver(joined(10)) as driver:
        assert play(driver, line) == out


def retimed(by_ms: int, how: str) -> ss.Topology:
    """A stream whose times are `by_ms` later when it comes to a join with a grace of 10."""

    class Retime:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self.forward = context.forward

        def process(self, record: ss.Record[str, str]) -> None:
            self.forward(record.replace(timestamp_ms=record.timestamp_ms + by_ms))

    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    table = b.table("table", materialized=ss.Materialized("rates", history_retention=1000))
    stream = b.stream("stream")
    if how == "process":
        made = stream.process(Retime)
    else:
        made = stream.set_timestamp(lambda r: r.timestamp_ms + by_ms)
    if how == "filter":
        made = made.filter(lambda _, value: value != "gone")
    made.join(table, lambda a, b: f"{a}+{b}", grace=10, name="priced").to("out")
    return b.build()


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize("how", ["set_timestamp", "process", "filter"])
@pytest.mark.parametrize(
    ("by_ms", "line", "out"),
    [
        (-50, "T k1@10 S kx@100 T k2@45 S ky@109 T k3@48 S jz@110", "k:x+3@50"),
        (-50, "T k1@10 S kx@100 T k2@49 S ky@110", "k:x+2@50"),
        (-50, "T k1@10 S kx@100 S ky@91 T k2@41 T j1@60", "k:y+2@41 k:x+2@50"),
        (50, "T k1@10 S kx@20 T k2@65 S ky@29 T k3@70 S jz@30", "k:x+3@70"),
    ],
)
def test_a_join_with_grace_goes_by_the_times_of_the_records_that_it_receives(
    by_ms: int, how: str, line: str, out: str, *, crashes: bool
) -> None:
    with TopologyTestDriver(retimed(by_ms, how)) as driver:
        made = []
        words = line.split()
        for i in range(0, len(words), 2):
            found = play(driver, " ".join(words[i : i + 2]))
            made += [] if found == "-" else [found]
            if crashes:
                driver.crash()
        assert " ".join(made) == out


def test_records_that_a_filter_drops_wake_none_that_wait() -> None:
    with TopologyTestDriver(retimed(0, "filter")) as driver:
        assert play(driver, "T k1@10 S kx@20 S kgone@99 T k2@15 S ky@30") == "k:x+2@20"


def test_what_waits_and_what_was_survive_a_crash() -> None:
    with TopologyTestDriver(joined(10)) as driver:
        assert play(driver, "T k1@10 T k2@25 S kx@20 S ky@26") == "-"
        driver.crash()
        assert play(driver, "T k3@15") == "-"
        driver.crash()
        assert play(driver, "S jz@99") == "k:x+3@20 k:y+2@26"
        assert driver.store("rates").observed_stream_time() == 25
        driver.crash()
        assert play(driver, "S jz@199") == "-"


def test_headers_wait_with_their_record() -> None:
    with TopologyTestDriver(joined(10)) as driver:
        driver.pipe("table", "k", "1", 10)
        driver.pipe("stream", "k", "x", 20, headers=[("trace", b"7")])
        driver.pipe("stream", "k", "y", 99)
        assert [(r.value, r.headers) for r in driver.read("out")] == [("x+1", (("trace", b"7"),))]


def expected(updates: list[tuple[str, str, int]], records: list[tuple[str, str, int]]) -> Made:
    """By looking at every update for every record."""
    made = []
    for key, value, time in records:
        before = [(at, i, new) for i, (k, new, at) in enumerate(updates) if k == key and at <= time]
        if before:
            made.append((key, f"{value}+{max(before)[2]}", time))
    return sorted(made)


@pytest.mark.parametrize("seed", range(3))
def test_with_grace_the_order_of_arrival_within_it_does_not_matter(seed: int) -> None:
    chance = random.Random(seed)
    updates = [(chance.choice("kj"), f"u{i}", 10 * i + chance.randrange(10)) for i in range(60)]
    records = [(chance.choice("kj"), f"s{i}", 7 * i + chance.randrange(7)) for i in range(90)]
    arrivals = [("table", row) for row in updates] + [("stream", row) for row in records]
    # Displaced by less than the grace.
    arrivals.sort(key=lambda one: one[1][2] + chance.randrange(50))
    with TopologyTestDriver(joined(50, retention_ms=1000)) as driver:
        for topic, (key, value, time) in arrivals:
            driver.pipe(topic, key, value, time)
            if chance.random() < 0.03:
                driver.crash()
        driver.pipe("stream", "-", "end", 10_000)
        made = [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")]
    assert sorted(made) == expected(updates, records), f"seed {seed}"
    assert [time for _, _, time in made] == sorted(time for _, _, time in made)


def test_a_grace_the_history_does_not_cover_is_refused() -> None:
    with pytest.raises(Misuse, match=r"grace is 101, the table's history 100 ms"):
        joined(101)
    joined(100)
    with pytest.raises(Misuse, match="must be 0 or more"):
        joined(-1)


@pytest.mark.parametrize("lot", [1, 2, 9])
def test_a_version_that_began_longer_ago_than_the_tolerance_is_no_match(lot: int) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    kept = ss.Materialized("rates", history_retention=1000)
    rates, stream = b.table("table", materialized=kept), b.stream("stream")
    for name, tolerance in (("any", None), ("ten", timedelta(milliseconds=10)), ("now", 0)):
        met = stream.left_join(rates, lambda _, rate: str(rate), tolerance=tolerance, name=name)
        met.to(name)
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all(
            "table", [("k", "a", 100), ("k", "c", 200), ("k", "b", 110), ("k", None, 130)]
        )
        asked = [("k", "x", time) for time in (100, 109, 120, 121, 130, 199, 200, 210, 211)]
        for at in range(0, len(asked), lot):
            driver.pipe_all("stream", asked[at : at + lot])
        made = {
            name: " ".join(r.value for r in driver.read(name)) for name in ("any", "ten", "now")
        }
    assert made == {
        "any": "a a b b None None c c c",
        "ten": "a a b None None None c c None",
        "now": "a None None None None None c None None",
    }


def test_a_tolerance_is_of_its_join_alone_and_part_of_the_topology() -> None:
    def tolerating(**terms: Any) -> ss.Topology:
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
        rates = b.table("table", materialized=ss.Materialized("rates", history_retention=1000))
        b.stream("stream").join(rates, lambda a, _b: a, name="priced", **terms).to("out")
        return b.build()

    waits = tolerating(grace=7, tolerance=5)
    assert (
        "Processor: priced (stores: [rates], tolerance 5)\n" in tolerating(tolerance=5).describe()
    )
    assert "Processor: priced (stores: [rates, priced-buffer], tolerance 5)\n" in waits.describe()
    assert "tolerance" not in tolerating().describe()
    terms = [{}, {"tolerance": 0}, {"tolerance": 5}, {"tolerance": 5, "grace": 7}]
    assert len({tolerating(**each).fingerprint() for each in terms}) == len(terms)
    aware = tolerating(tolerance=timedelta(milliseconds=5))
    assert aware.fingerprint() == tolerating(tolerance=5).fingerprint()
    with pytest.raises(Misuse, match="join: tolerance is -1, but it must be 0 or more"):
        tolerating(tolerance=-1)


def test_another_tolerance_is_that_of_the_records_that_wait() -> None:
    def tolerating(tolerance_ms: int | None) -> ss.Topology:
        b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
        rates = b.table("table", materialized=ss.Materialized("rates", history_retention=1000))
        terms: Any = {"grace": 50, "tolerance": tolerance_ms, "name": "priced"}
        b.stream("stream").left_join(rates, lambda a, rate: f"{a}+{rate}", **terms).to("out")
        return b.build()

    with TopologyTestDriver(tolerating(5)) as driver:
        driver.pipe("table", "k", "1", 100)
        driver.pipe("stream", "k", "a", 110)
        driver._topology = tolerating(10)
        driver.crash()
        driver.pipe("stream", "k", "b", 180)
        driver._topology = tolerating(None)
        driver.crash()
        driver.pipe("stream", "k", "c", 300)
        assert [r.value for r in driver.read("out")] == ["a+1", "b+1"]


def test_a_join_without_versions_takes_no_tolerance() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    stream: Any = b.stream("stream")
    rates, shared = b.table("table", materialized="rates"), b.global_table("shared")
    kept = ss.Materialized("kept", history_retention=1000)
    late = b.table("late", materialized=kept).suppress(ss.Suppressed.until_time_limit(5))
    for join in (stream.join, stream.left_join):
        for table in (rates, late):
            with pytest.raises(Misuse, match="tolerance needs a table with history, whose"):
                join(table, min, tolerance=0)
        with pytest.raises(Misuse, match="without windows, grace or tolerance"):
            join(shared, min, key=min, tolerance=0)
        with pytest.raises(Misuse, match="no other grace or tolerance"):
            join(stream, min, ss.JoinWindows(5), tolerance=0)


def test_windows_keep_no_history() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING)
    windows = b.stream("in").group_by_key().windowed_by(ss.TumblingWindows(10))
    kept: Any = ss.Materialized("kept", history_retention=10)
    with pytest.raises(InvalidTopology, match=r"but not windows: .* keep it in a view of them"):
        windows.count(kept)
    view = windows.count("counts").map_values(lambda count: count, kept)
    assert view.store == "kept"
    spec_alone: Any = ss.persistent_key_value_store("s")
    with pytest.raises(Misuse, match="a spec itself says"):
        ss.Materialized(spec_alone, history_retention=10)
    spec = ss.in_memory_versioned_key_value_store("rates", 10, key_serde=serdes.STRING)
    assert b.stream("more").to_table(ss.Materialized(spec), name="t").store == "rates"


def test_a_store_with_history_is_what_a_processor_gets() -> None:
    spec = ss.persistent_versioned_key_value_store(
        "seen", 1000, key_serde=serdes.STRING, value_serde=serdes.STRING
    )

    class Remember:
        def __init__(self, context: ss.ProcessorContext) -> None:
            self.store, self.context = context.store(spec), context

        def process(self, record: ss.Record[str, str]) -> None:
            was = self.store.get(record.key, as_of=record.timestamp_ms)
            self.store.put(record.key, record.value, record.timestamp_ms)
            self.context.forward(record.replace(value="-" if was is None else was.value))

    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    b.stream("in").process(Remember, spec).to("out")
    with TopologyTestDriver(b.build()) as driver:
        for value, time in (("a", 10), ("c", 30), ("b", 20)):
            driver.pipe("in", "k", value, time)
        driver.crash()
        driver.pipe("in", "k", "d", 25)
        assert [r.value for r in driver.read("out")] == ["-", "a", "a", "b"]
        with pytest.raises(ss.errors.CommitInsideProcessor):
            driver.store("seen").commit()


# The changelog.


def test_every_version_is_logged_once_with_its_own_time() -> None:
    with TopologyTestDriver(joined()) as driver:
        play(driver, "T k5@50 T k1@10 T k1@20 T k-@60")
        logged = driver.read("topology-test-rates-changelog")
        assert [(r.value, r.timestamp_ms) for r in logged] == [
            ("5", 50),
            ("1", 10),
            ("1", 20),
            (None, 60),
        ]


def test_a_late_version_is_not_logged() -> None:
    with TopologyTestDriver(joined()) as driver:
        play(driver, "T k5@500 T k1@399")
        assert len(driver.read("topology-test-rates-changelog")) == 1


def test_times_that_kafkas_client_cannot_send_come_back_from_the_changelog() -> None:
    with TopologyTestDriver(joined()) as driver:
        play(driver, "T k1@-1 T k2@0 T k3@1 T k4@2")
        stamps = [r.timestamp_ms for r in driver.read("topology-test-rates-changelog")]
        assert stamps == [-1, 0, 1, 2]
        driver.crash()
        history = driver.store("rates").history("k", descending=False)
        assert [(v.value, v.timestamp_ms) for v in history] == [
            ("1", -1),
            ("2", 0),
            ("3", 1),
            ("4", 2),
        ]


def test_no_changelog_is_spared_unless_told_so_as_each_version_has_a_key_of_its_own() -> None:
    b = ss.StreamsBuilder()
    b.table("rates", materialized=ss.Materialized("rates", history_retention=1000))
    b.table(
        "told",
        materialized=ss.Materialized(
            "told", history_retention=5, changelog_config={"min.compaction.lag.ms": "7"}
        ),
    )
    b.table("plain", materialized="plain")
    topology = b.build()
    counts = topology.partition_counts({"rates": 1, "told": 1, "plain": 1})
    lags = {
        spec.name: spec.config.get("min.compaction.lag.ms")
        for spec in internal_topics(topology, counts, "shop")
    }
    assert lags == {
        "shop-rates-changelog": None,
        "shop-told-changelog": "7",
        "shop-plain-changelog": None,
    }


# Tables computed from one with history.


def viewed(
    grace_ms: int, view: Callable[[ss.KTable[Any, Any]], ss.KTable[Any, Any]]
) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    history = ss.Materialized("rates", history_retention=1000)
    table = view(b.table("table", materialized=history, name="rates-table"))
    stream = b.stream("stream", name="orders")
    joined = stream.left_join(table, lambda a, b: [a, b], grace=grace_ms, name="priced")
    joined.to("out")
    return b.build()


VIEWS: dict[
    str, tuple[Callable[[ss.KTable[Any, Any]], ss.KTable[Any, Any]], Callable[[int], Any]]
] = {
    "filter": (
        lambda t: t.filter(lambda k, v: v % 2 == len(k) % 2),
        lambda v: v if v % 2 else None,
    ),
    "map values": (lambda t: t.map_values(lambda v: [v]), lambda v: [v]),
    "both": (
        lambda t: t.map_values(lambda v: v + 1).filter(lambda _k, v: v % 3 > 0).map_values(str),
        lambda v: str(v + 1) if (v + 1) % 3 else None,
    ),
}


@pytest.mark.parametrize("grace_ms", [0, 40])
@pytest.mark.parametrize("name", VIEWS)
def test_a_stream_joined_with_a_view_sees_each_version_as_the_view_shows_it(
    name: str, grace_ms: int
) -> None:
    view, shown = VIEWS[name]
    updates = [(chr(97 + i % 7), i, 10 * i) for i in range(200)]
    asked = [(chr(97 + i % 7), f"s{i}", 10 * i + 5) for i in range(120, 200)]
    with TopologyTestDriver(viewed(grace_ms, view)) as driver:
        driver.pipe_all("table", updates)
        driver.pipe_all("stream", asked)
        driver.pipe("stream", "z", "end", 9999)
        made = [(r.key, r.value) for r in driver.read("out") if r.key != "z"]
    latest = {text: i for i, (_, text, _) in enumerate(asked, 120)}
    assert made == [(key, [text, shown(latest[text])]) for key, text, _ in asked]


def test_a_view_kept_in_a_plain_store_shows_its_latest_rows() -> None:
    with TopologyTestDriver(viewed(0, lambda t: t.map_values(lambda v: -v, "kept"))) as driver:
        driver.pipe_all("table", [("a", 1, 10), ("a", 2, 30)])
        driver.pipe("stream", "a", "x", 20)
        assert [r.value for r in driver.read("out")] == [["x", -2]]


# Names.


def test_a_grace_join_without_a_name_is_told_of_as_its_store_would_be_renamed() -> None:
    def build(name: str | None, *, peeked: bool) -> ss.Topology:
        b = ss.StreamsBuilder()
        table = b.table("table", materialized=ss.Materialized("rates", history_retention=100))
        stream = b.stream("stream")
        if peeked:
            stream = stream.peek(lambda _key, _value: None)
        stream.join(table, lambda a, _b: a, grace=10, name=name).to("out")
        return b.build()

    buffers = {
        next(name for name in build(None, peeked=peeked).stores if name.endswith("-buffer"))
        for peeked in (False, True)
    }
    assert len(buffers) == 2, "its name depends on the nodes before it"
    assert any("-buffer" in name for name in build(None, peeked=False).unnamed)
    assert build("priced", peeked=False).unnamed == ()


# What history cannot tell any more.


@pytest.mark.parametrize("left", [False, True])
def test_a_join_that_history_cannot_answer_says_so_as_a_look_up_does(
    left: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [r.getMessage() for r in caplog.records if "history begins at" in r.getMessage()]

    with TopologyTestDriver(joined(left=left)) as driver:
        play(driver, "T k1@10 T k2@200 T j1@300 S ky@250")
        assert told() == []
        play(driver, "S kx@150")
        assert told() == [
            (
                "store 'rates': asked for the version as of 150, but its history begins at 200: "
                "the answer is None, as it will be for older times"
            )
        ]
        play(driver, "S kx@140 S jx@130")
        assert len(told()) == 1


def test_a_join_of_a_latest_version_older_than_history_is_answered_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with TopologyTestDriver(joined()) as driver:
        assert play(driver, "T k1@10 T j2@900 S kx@20") == "k:x+1@20"
    assert "history begins at" not in caplog.text


def test_an_aggregate_with_history_counts_no_record_that_is_older_than_it() -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT64)
    kept = ss.Materialized("counts", history_retention=100)
    counts = b.stream("in").group_by_key().count(kept)
    counts.to_stream().to("out")
    with TopologyTestDriver(b.build()) as driver:
        driver.pipe_all("in", [("a", 1, 0), ("b", 1, 1000), ("c", 1, 899), ("c", 1, 900)])
        # What is later than a late record takes it in.
        driver.pipe_all("in", [("b", 1, 0), ("a", 1, 5), ("a", 1, 950), ("d", None, 2000)])
        assert sum(task.report.dropped_records for task in driver._tasks.values()) == 3
        driver.crash()
        driver.pipe("in", "b", 1, 950)
        assert [(r.key, r.value, r.timestamp_ms) for r in driver.read("out")] == [
            ("a", 1, 0),
            ("b", 1, 1000),
            ("c", 1, 900),
            ("b", 2, 1000),
            ("a", 2, 950),
            ("b", 3, 1000),
        ]
        found = driver.store("counts")
        assert [(v.value, v.timestamp_ms) for v in found.history("a")] == [(2, 950), (1, 0)]
        assert found.get("b").value == 3


@pytest.mark.parametrize("lot", [1, 3, 40])
def test_the_history_of_an_aggregate_does_not_depend_on_batches(lot: int) -> None:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)

    def add(_key: str, value: int, members: list[int]) -> list[int]:
        members.append(value)
        return members

    kept: Any = ss.Materialized("kept", history_retention=10**6)
    b.stream("in").group_by_key().aggregate(list[int], add, kept)
    rows = [(f"k{i % 3}", i, 10 * i - 25 * (i % 4 == 3)) for i in range(10, 50)]
    with TopologyTestDriver(b.build()) as driver:
        for start in range(0, len(rows), lot):
            driver.pipe_all("in", rows[start : start + lot])
        for name in ("k0", "k1", "k2"):
            members, latest, expected = [], 0, {}
            for key, value, time in rows:
                if key == name:
                    members.append(value)
                    latest = max(latest, time)
                    expected[latest] = list(members)
            versions = driver.store("kept").history(name)
            assert {v.timestamp_ms: v.value for v in versions} == expected
