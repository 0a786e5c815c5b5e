"""Sources that find their topics by a pattern: what is written, matched and refused."""

import re
from collections.abc import Callable

import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, Misuse, NotCopartitioned
from statestore.operations.deployed import Deployed, DeployedPart
from statestore.operations.start.matching import OwnTopics, matched_now
from statestore.operations.start.topics import internal_topics
from statestore.topology.nodes import TopicName
from statestore.topology.patterns import matches, text_of

ORDERS = re.compile("orders-.*")
Write = Callable[[ss.StreamsBuilder[str, str]], object]


def built(write: Write) -> ss.Topology:
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.STRING)
    write(b)
    return b.build()


def counting(b: ss.StreamsBuilder[str, str]) -> None:
    b.stream(ORDERS, name="orders").group_by_key().count("sums").to_stream().to("totals")


def test_a_description_has_the_pattern_whatever_it_matches() -> None:
    topology = built(counting)
    matched = topology.matching({"orders": ["orders-a", "orders-b"]})
    assert "    Source: orders (topics: orders-.*)\n" in topology.describe()
    assert matched.describe() == topology.describe()
    assert matched.fingerprint() == topology.fingerprint()
    assert topology.topics() == (set(), {"totals"})
    assert matched.topics() == ({"orders-a", "orders-b"}, {"totals"})
    other = built(lambda b: b.stream(re.compile("orders-.+")).to("totals"))
    assert other.fingerprint() != built(lambda b: b.stream(ORDERS).to("totals")).fingerprint()


@pytest.mark.parametrize(
    ("pattern", "topic", "matched"),
    [
        ("orders-.*", "orders-a", True),
        ("orders-.*", "orders-", True),
        ("orders-.*", "my-orders-a", False),
        ("orders", "orders-a", False),
        ("a|ab", "ab", True),
        (".*", "__consumer_offsets", False),
        (".*", "_schemas", True),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, topic: str, matched: bool) -> None:
    assert matches(pattern, topic) is matched


@pytest.mark.parametrize(
    "pattern",
    [
        re.compile("a.b"),
        re.compile("A.b", re.IGNORECASE),
        re.compile("(?i)A.b"),
        re.compile("a . b  # any", re.VERBOSE | re.IGNORECASE),
        re.compile(r"\w+", re.ASCII),
        re.compile("(?i)a.b", re.DOTALL | re.MULTILINE),
    ],
)
def test_the_text_of_a_pattern_is_that_pattern(pattern: re.Pattern[str]) -> None:
    again = re.compile(text_of("stream()", pattern))
    assert again.flags == pattern.flags
    for name in ("a.b", "A-B", "é", "ab", "a\nb"):
        assert bool(again.fullmatch(name)) is bool(pattern.fullmatch(name))


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda b: b.stream(re.compile(b"x")), "a pattern of str that is not empty"),
        (lambda b: b.stream(re.compile("")), r"not empty, not re.compile\(''\)"),
        (lambda b: b.stream(["a", ORDERS]), "takes the name of a topic, not re.compile"),
        (lambda b: b.table(ORDERS), r"table\(\) takes the name of a topic, not re.*to_table\(\)"),
        (lambda b: b.global_table(ORDERS), r"global_table\(\) takes the name of a topic"),
    ],
)
def test_a_pattern_that_cannot_be_is_refused(write: Write, said: str) -> None:
    with pytest.raises(Misuse, match=said):
        built(write)


def both(first: str | re.Pattern[str], second: str | re.Pattern[str]) -> Write:
    def write(b: ss.StreamsBuilder[str, str]) -> None:
        b.stream(first, name="one").to("out")
        b.stream(second, name="two").to("out")

    return write


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (
            both("orders-a", ORDERS),
            "of source two matches topic 'orders-a', which source one reads: leave it out of",
        ),
        (both(ORDERS, ORDERS), "sources one and two have the same pattern 'orders-.*': read it"),
        (
            lambda b: b.stream(ORDERS, name="one").to("orders-done"),
            "the pattern 'orders-.*' of source one matches topic 'orders-done', which sink",
        ),
        (
            lambda b: (b.stream(ORDERS).to("out"), b.global_table("orders-a", materialized="g")),
            "matches topic 'orders-a', which source KSTREAM-SOURCE-",
        ),
    ],
)
def test_a_pattern_that_matches_a_topic_of_the_topology_is_refused(write: Write, said: str) -> None:
    with pytest.raises(InvalidTopology) as refused:
        built(write)
    assert said in str(refused.value)


def test_a_topic_that_two_patterns_match_is_refused_when_it_is_there() -> None:
    topology = built(both(ORDERS, re.compile(".*-a")))
    topology.matching({"one": ["orders-b"], "two": ["bills-a"]})
    with pytest.raises(InvalidTopology, match="'orders-a', which source one reads by a pattern"):
        topology.matching({"one": ["orders-a"], "two": ["orders-a"]})


def test_a_topic_left_out_as_the_message_says_is_no_collision() -> None:
    pattern = re.compile("(?!orders-done$)orders-.*")
    topology = built(lambda b: b.stream(pattern).to("orders-done"))
    assert OwnTopics("app").matching(pattern.pattern, ["orders-a", "orders-done"]) == ["orders-a"]
    assert topology.patterns == {topology.nodes[0].name: pattern.pattern}


def test_what_is_the_applications_own_is_never_matched() -> None:
    own = OwnTopics("app", frozenset({"letters"}))
    theirs = ["app-x", "apple-s-changelog", "in", "my-changelog", "x-repartition"]
    topics = [*theirs, "__offsets", "app-s-changelog", "app-s-repartition", "letters"]
    assert own.matching(".*", topics) == theirs


def test_there_are_as_many_tasks_as_the_widest_topic_has_partitions() -> None:
    topology = built(counting).matching({"orders": ["orders-a", "orders-b"]})
    counts = topology.partition_counts({"orders-a": 2, "orders-b": 3})
    assert len(topology.tasks(counts)[0]) == 3


def test_there_are_no_tasks_and_no_internal_topics_before_a_topic_matches() -> None:
    def write(b: ss.StreamsBuilder[str, str]) -> None:
        again = b.stream(ORDERS, name="orders").select_key(lambda _k, v: v)
        again.group_by_key(name="by-value").count("sums").to_stream().to("totals")

    topology = built(write).matching({"orders": []})
    counts = topology.partition_counts({})
    assert topology.tasks(counts) == {0: [], 1: []}
    assert internal_topics(topology, counts, "app") == []


def test_tasks_stay_when_the_widest_topic_is_gone() -> None:
    topology = built(counting)
    assert topology.fed_by_patterns() == ["sums-changelog"]
    gone = topology.matching({"orders": ["orders-a"]}, {"sums-changelog": 4})
    counts = gone.partition_counts({"orders-a": 2})
    assert len(gone.tasks(counts)[0]) == 4
    assert [spec.partitions for spec in internal_topics(gone, counts, "app")] == [4]


def test_what_a_pattern_feeds_over_a_repartition_topic_does_not_shrink_either() -> None:
    def write(b: ss.StreamsBuilder[str, str]) -> None:
        again = b.stream(ORDERS, name="orders").select_key(lambda _k, v: v)
        again.group_by_key(name="by-value").count("sums").to_stream().to("totals")
        b.stream("others").group_by_key().count("apart").to_stream().to("totals")

    topology = built(write)
    assert topology.fed_by_patterns() == ["by-value-repartition", "sums-changelog"]
    gone = topology.matching({"orders": []}, {"by-value-repartition": 3, "sums-changelog": 3})
    counts = gone.partition_counts({"others": 1})
    assert counts[TopicName("by-value", internal=True)] == 3
    assert {part: len(tasks) for part, tasks in gone.tasks(counts).items()} == {0: 0, 1: 3, 2: 1}


def test_topics_of_a_pattern_that_are_joined_need_as_many_partitions() -> None:
    def write(b: ss.StreamsBuilder[str, str]) -> None:
        people = b.table("people", materialized="people")
        b.stream(ORDERS, name="orders").join(people, lambda v, p: v + p).to("out")

    topology = built(write)
    alone = topology.matching({"orders": []})
    assert len(alone.tasks(alone.partition_counts({"people": 2}))[0]) == 2
    matched = topology.matching({"orders": ["orders-a", "orders-b"]})
    assert matched.partition_counts({"people": 2, "orders-a": 2, "orders-b": 2})
    with pytest.raises(NotCopartitioned, match=r"\(orders-a: 2, orders-b: 3, people: 2\)|orders-b"):
        matched.partition_counts({"people": 2, "orders-a": 2, "orders-b": 3})


class Topics(list[str]):
    def topics(self) -> list[str]:
        return [*self]


def test_what_was_deployed_is_looked_at_with_the_topics_of_now() -> None:
    part = DeployedPart(
        0,
        ["in", "orders-a", "orders-gone", "orders-x-repartition"],
        internal=["orders-x-repartition"],
        patterns=["orders-.*"],
    )
    shape = Deployed(sub_topologies=[part, DeployedPart(1, ["orders-b"])])
    cluster = Topics(["in", "orders-a", "orders-new", "app-orders-x-repartition"])
    now = matched_now(shape, cluster, OwnTopics("app"))
    assert [each.source_topics for each in now.sub_topologies] == [
        ["in", "orders-x-repartition", "orders-a", "orders-new"],
        ["orders-b"],
    ]
