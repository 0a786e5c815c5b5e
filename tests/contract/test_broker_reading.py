"""Source, Changelog, Cluster: one suite for the real broker and the one in memory."""

import pytest

from statestore.errors import (
    NotCopartitioned,
    RecordFailed,
    TaskCorrupted,
    TopicMissing,
    Unavailable,
)
from statestore.model.batch import Batch
from statestore.model.ids import TopicPartition
from statestore.ports import GroupOffset, Records, TopicSpec
from tests.builders import eventually
from tests.contract.broker_steps import (
    STAMP,
    YEAR_2013,
    commit,
    opened,
    read,
    read_all,
    send,
    until,
    values,
)
from tests.contract.broker_worlds import Row, World

# Without transactions.


def test_a_plain_outbox_commits_records_first_and_offsets_when_told(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    outbox, cluster = world.plain_outbox(), world.cluster()
    outbox.open()
    outbox.begin()
    outbox.send(Records(topic, [b"a", b"b"], [b"1", b"2"], [1, 2], partition=0), tracked=True)
    outbox.commit()
    assert [row.value for row in world.rows(topic)] == [b"1", b"2"]
    assert outbox.ends() == {tp: 2}
    assert cluster.group_offsets([tp]) == {}
    outbox.send_offsets({tp: 5}, STAMP)
    assert cluster.group_offsets([tp]) == {tp: GroupOffset(5, STAMP)}
    outbox.begin()
    assert outbox.ends() == {}
    send(outbox, topic, "stays")
    outbox.abort()
    assert [row.value for row in world.rows(topic)] == [b"1", b"2", b"stays"]


# An audit's own reader.


def test_an_audit_reads_what_was_committed_between_two_offsets_and_no_more(world: World) -> None:
    topic = world.topic(partitions=2)
    tp = TopicPartition(topic, 1)
    outbox = opened(world)
    for texts in (["a", "b"], ["c"], ["d"]):
        outbox.begin()
        send(outbox, topic, *texts, partition=1)
        outbox.commit()
        world.settle(topic)
    outbox.begin()
    send(outbox, topic, "dropped", partition=1)
    outbox.flush()
    outbox.abort()
    world.settle(topic)
    audit_log = world.audit_log()
    # Four records committed, one aborted, four control records.
    assert audit_log.bounds(tp) == (0, 9)
    for first, last, found in [(0, 9, "abcd"), (0, 3, "ab"), (1, 4, "bc"), (5, 5, ""), (7, 9, "")]:
        read = list(audit_log.read(tp, first, last))
        assert b"".join(value or b"" for lot in read for value in lot.values) == found.encode()
        assert all(lot.keys == lot.values and set(lot.times) == {YEAR_2013} for lot in read)


def test_an_audit_takes_an_open_transaction_for_the_end_of_the_log(world: World) -> None:
    tp = TopicPartition(world.topic(), 0)
    audit_log = world.audit_log()
    outbox = opened(world)
    outbox.begin()
    send(outbox, tp.topic, "a", "b")
    outbox.commit()
    world.settle(tp.topic)
    world.cluster().delete_before({tp: 1})
    outbox.begin()
    send(outbox, tp.topic, "open")
    outbox.flush()
    assert audit_log.bounds(tp) == (1, 3)
    outbox.commit()
    world.settle(tp.topic)
    assert audit_log.bounds(tp) == (1, 5)


def test_an_audit_of_a_log_that_nobody_made_or_nobody_serves_says_so(world: World) -> None:
    with pytest.raises(TopicMissing, match="no-such-topic"):
        world.audit_log().bounds(TopicPartition("no-such-topic", 0))
    with pytest.raises(Unavailable):
        world.unreachable().audit_log().bounds(TopicPartition("topic", 0))
    with pytest.raises(Unavailable):
        list(world.unreachable().audit_log().read(TopicPartition("topic", 0), 0, 1))


# Polling.


def test_poll_keeps_to_its_limit_and_loses_nothing(world: World) -> None:
    topic = world.topic(partitions=3)
    world.produce(topic, [Row(b"k", b"%d" % i, 1, (), i % 3) for i in range(3000)])
    tps = [TopicPartition(topic, p) for p in range(3)]
    for at_once in (1, 7, 1000):
        source = world.source()
        source.start(dict.fromkeys(tps, 900))
        got = read(source, dict.fromkeys(tps, 1000), at_once=at_once)
        for tp in tps:
            mine = [int(r.value or b"") for r in got if r.partition == tp.partition]
            assert mine == list(range(2700 + tp.partition, 3000, 3))


def test_poll_tells_apart_topics_with_equal_partitions(world: World) -> None:
    one, two = world.topic(partitions=2), world.topic(partitions=2)
    for topic in (one, two):
        for p in range(2):
            world.produce(topic, [Row(None, f"{topic}-{p}".encode(), 1, (), p)] * 20)
    tps = [TopicPartition(topic, p) for topic in (one, two) for p in range(2)]
    for chosen in (tps, [tps[0], tps[2]], [tps[0], tps[1]], [tps[3]]):
        records = read_all(world, *chosen, at_once=15)
        assert len(records) == 20 * len(chosen)
        assert all(r.value == f"{r.topic}-{r.partition}".encode() for r in records)


def test_paused_partitions_wait_and_lose_nothing(world: World) -> None:
    topic = world.topic(partitions=2)
    world.produce(topic, [Row(None, b"%d" % i, 1, (), i % 2) for i in range(400)])
    kept, paused = TopicPartition(topic, 0), TopicPartition(topic, 1)
    source = world.source()
    source.start({kept: 0, paused: 0})
    first = read(source, {kept: 20}, at_once=20)
    before = source.position(paused)
    source.pause([paused])
    rest = read(source, {kept: 200})
    assert {record.partition for record in rest} == {0}
    assert source.position(paused) == before
    source.resume([paused])
    rest += read(source, {paused: 200})
    got = [int(r.value or b"") for r in first + rest]
    assert sorted(got) == list(range(400))
    assert [n for n in got if n % 2] == list(range(1, 400, 2))


def test_poll_returns_early_at_the_end_of_the_log(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    world.produce(topic, [Row(None, b"x", 1)])
    source = world.source()
    source.start({tp: 0})
    # One that waits for all of its time runs into the time limit of the test.
    read_patiently: list[Batch] = source.poll(1000, 3_600_000)
    assert [len(batch) for batch in read_patiently] == [1]


def test_a_source_started_again_goes_back(world: World) -> None:
    topic = world.topic(partitions=2)
    world.produce(topic, [Row(None, b"%d" % i, 1, (), i % 2) for i in range(100)])
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    source = world.source()
    source.start({first: 0, second: 0})
    assert len(read(source, {first: 50, second: 50})) == 100
    source.pause([second])
    source.start({first: 10, second: 45})
    assert len(read(source, {first: 50, second: 50})) == 45
    source.start({second: 49})
    assert values(read(source, {second: 50})) == [b"99"]


@pytest.mark.parametrize("start", [2, 100])
def test_input_that_is_gone_fails_instead_of_being_skipped(world: World, start: int) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    world.produce(topic, [Row(None, b"%d" % i, 1) for i in range(10)])
    world.cluster().delete_before({tp: 5})
    source = world.source()
    source.start({tp: start})
    with pytest.raises(RecordFailed, match=f"{topic}-0"):
        until(lambda: bool(source.poll(10, 500)), "an error")


# Changelogs.


def test_replay_gives_exactly_the_committed_records_between_its_bounds(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    outbox = opened(world)
    commit(outbox, topic, "a", "b")  # 0 1, marker 2
    world.settle(topic)
    outbox.begin()
    send(outbox, topic, "dropped")  # 3, marker 4
    outbox.flush()
    outbox.abort()
    commit(outbox, topic, "c")  # 5, marker 6
    changelog = world.changelog()
    world.settle(topic)
    end = changelog.bounds([tp])[tp].end
    assert end == 7
    commit(outbox, topic, "later")

    def replayed(start: int, stop: int) -> list[bytes | None]:
        found: list[bytes | None] = []
        reached = start
        for stretch in changelog.replay(tp, start, stop):
            found += stretch.batch.values.objects
            assert reached < stretch.offset_next <= stop
            reached = stretch.offset_next
        assert reached == stop
        return found

    assert replayed(0, end) == [b"a", b"b", b"c"]
    assert replayed(1, 6) == [b"b", b"c"]
    assert replayed(2, 5) == []
    assert replayed(0, 1) == [b"a"]
    assert replayed(7, 7) == []
    next(iter(changelog.replay(tp, 0, end)))  # abandoned


def test_replay_of_offsets_the_log_does_not_hold_is_corruption(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    world.produce(topic, [Row(b"k", b"%d" % i, 1) for i in range(10)])
    world.cluster().delete_before({tp: 5})
    changelog = world.changelog()
    assert changelog.bounds([tp])[tp] == (5, 10)
    for start, end in ((4, 10), (50, 60)):
        with pytest.raises(TaskCorrupted, match=f"{topic}-0"):
            list(changelog.replay(tp, start, end))


def test_a_source_knows_when_it_has_read_a_log_to_its_stable_end(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    outbox = opened(world)
    commit(outbox, topic, "a")
    world.settle(topic)  # else its mark may come behind what follows
    outbox.begin()
    send(outbox, topic, "open")
    outbox.flush()
    source = world.source()
    source.start({tp: 0})
    assert not source.at_end(tp)
    assert source.log_end(tp) in {None, 2}
    read(source, {tp: 2})
    until(lambda: source.poll(10, 100) == [] and source.at_end(tp), "at the open transaction")
    outbox.commit()
    read(source, {tp: 4})
    until(lambda: source.poll(10, 100) == [] and source.at_end(tp), "at the end")
    assert source.log_end(tp) == 4


def test_a_source_hears_how_far_a_log_goes_that_it_does_not_read_to_its_end(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    outbox = opened(world)
    commit(outbox, topic, *map(str, range(50)))
    source = world.source()
    source.start({tp: 0})
    until(lambda: source.poll(1, 100) != [], "the first record")
    source.pause([tp])
    until(lambda: source.poll(1, 100) == [] and source.log_end(tp) == 51, "the end is heard of")
    assert source.position(tp) == 1


# The cluster.


def test_create_is_idempotent_and_alters_nothing(world: World) -> None:
    cluster = world.cluster()
    names = [f"{world.topic()}-x", f"{world.topic()}-y"]
    specs = [TopicSpec(name, 3, {"cleanup.policy": "compact"}) for name in names]
    cluster.create(specs[:1])
    cluster.create(specs)
    cluster.create(specs)
    assert cluster.partitions([*names, "absent"]) == dict.fromkeys(names, 3)
    with pytest.raises(NotCopartitioned, match=names[1]):
        cluster.create([specs[0], specs[1]._replace(partitions=4)])
    assert cluster.partitions(names) == dict.fromkeys(names, 3)


def test_the_settings_of_topics_are_those_given_over_the_brokers_own(world: World) -> None:
    given = {"cleanup.policy": "compact,delete", "retention.ms": "86400000"}
    plain, kept = world.topic(), world.topic(config=given)
    told = world.cluster().topic_settings([plain, kept])
    assert told[plain].items() >= {"cleanup.policy": "delete", "retention.bytes": "-1"}.items()
    assert told[kept].items() >= (given | {"retention.bytes": "-1"}).items()
    assert world.cluster().topic_settings([]) == {}


def test_a_topic_is_described_as_it_would_be_created_again(world: World) -> None:
    given = {"cleanup.policy": "compact", "segment.ms": "60000"}
    plain, kept, cluster = world.topic(), world.topic(config=given), world.cluster()
    found = cluster.specs([plain, kept, f"{plain}-none"])
    assert found.keys() == {plain, kept}
    for topic, spec in found.items():
        assert (spec.name, spec.partitions, spec.replicas) == (topic, 1, 1)
        assert "max.message.bytes" not in spec.config  # a default of the broker
    assert found[kept].config.items() >= given.items()
    again = found[kept]._replace(name=f"{kept}-again")
    cluster.create([again])
    assert cluster.specs([again.name]) == {again.name: again}


def test_a_compaction_lag_is_raised_and_never_lowered(world: World) -> None:
    topic, cluster = world.topic(config={"cleanup.policy": "compact"}), world.cluster()

    def lag_ms() -> int:
        return int(world.cluster().topic_settings([topic])[topic]["min.compaction.lag.ms"])

    assert cluster.raise_compaction_lag(topic, 5000) == 0
    eventually(lambda: lag_ms() == 5000, "the setting is seen")
    assert cluster.raise_compaction_lag(topic, 4000) == 5000
    assert lag_ms() == 5000
    assert cluster.raise_compaction_lag(f"{topic}-none", 5000) is None


def test_removed_topics_and_offsets_are_gone_and_may_be_removed_again(world: World) -> None:
    gone, stays, cluster = world.topic(), world.topic(), world.cluster()
    outbox = world.plain_outbox()
    outbox.open()
    outbox.begin()
    outbox.send_offsets({TopicPartition(stays, 0): 3}, STAMP)
    outbox.commit()
    outbox.close()
    for _ in range(2):
        cluster.remove([gone], world.application_id)
        eventually(lambda: not world.cluster().partitions([gone]), "the topic is gone")
    assert world.cluster().partitions([gone, stays]) == {stays: 1}
    assert world.cluster().group_offsets([TopicPartition(stays, 0)]) == {}


def test_topics_are_removed_and_created_again_while_the_group_stays(world: World) -> None:
    again, stays, cluster = world.topic(partitions=2), world.topic(), world.cluster()
    world.produce(again, [Row(None, b"x", YEAR_2013)])
    (before,) = cluster.topic_ids([again]).values()
    outbox = world.plain_outbox()
    outbox.open()
    outbox.begin()
    outbox.send_offsets({TopicPartition(stays, 0): 3}, STAMP)
    outbox.commit()
    outbox.close()
    cluster.remove([again], None)
    cluster.create([TopicSpec(again, 3, {})])
    (after,) = cluster.topic_ids([again]).values()
    assert after != before
    assert cluster.partitions([again]) == {again: 3}
    ends = cluster.bounds([TopicPartition(again, p) for p in range(3)])
    assert {tuple(bounds) for bounds in ends.values()} == {(0, 0)}
    assert world.cluster().group_offsets([TopicPartition(stays, 0)])


def test_topics_grow_and_never_shrink_and_keep_their_records(world: World) -> None:
    topic, cluster = world.topic(partitions=2), world.cluster()
    world.produce(topic, [Row(None, b"x", YEAR_2013)])
    for wanted, count in ((5, 5), (5, 5), (3, 5)):
        cluster.grow({topic: wanted, f"{topic}-none": 2})
        assert cluster.partitions([topic, f"{topic}-none"]) == {topic: count}
    ends = cluster.bounds([TopicPartition(topic, p) for p in range(5)])
    assert sum(bounds.end for bounds in ends.values()) == 1


def test_offsets_are_found_by_record_time(world: World) -> None:
    topic = world.topic(partitions=2)
    tp, empty = TopicPartition(topic, 0), TopicPartition(topic, 1)
    world.produce(topic, [Row(None, b"x", YEAR_2013 + 100 * i) for i in range(10)])
    cluster = world.cluster()
    for time_ms, offset in [
        (0, 0),
        (-5, 0),
        (YEAR_2013, 0),
        (YEAR_2013 + 1, 1),
        (YEAR_2013 + 300, 3),
        (YEAR_2013 + 901, 10),
    ]:
        assert cluster.offsets_at([tp, empty], time_ms) == {tp: offset, empty: 0}


def test_purging_moves_the_log_start_only(world: World) -> None:
    topic = world.topic()
    tp = TopicPartition(topic, 0)
    world.produce(topic, [Row(None, b"%d" % i, 1) for i in range(10)])
    cluster = world.cluster()
    cluster.delete_before({tp: 4})
    cluster.delete_before({tp: 2})
    cluster.delete_before({})
    assert cluster.bounds([tp])[tp] == (4, 10)
    assert values(read_all(world, tp)) == [b"%d" % i for i in range(4, 10)]


def test_a_cluster_that_answers_passes_its_check(world: World) -> None:
    world.cluster().check()
