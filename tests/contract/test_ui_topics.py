"""Looks into topics on the page: what is shown, what is refused, and that nothing is consumed."""

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import statestore as ss
from statestore import serdes
from statestore.layout.folders import StateLayout
from statestore.model.ids import TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.model.records import Header, Record
from statestore.operations.deployed import describe_deployment, publish_deployed
from statestore.ports import TopicSpec
from statestore.runtime import Runtime, SystemClock
from statestore.tasks.dead_letters import error_headers
from statestore.testing.memory_broker import MemoryBroker
from statestore.topology.graph import Topology
from statestore.ui.polling import Poller
from statestore.ui.site import application
from tests.ui_rig import HOSTILE

TOPICS = "/applications/a/topics"
LETTERS = "a-letters"


def pipeline() -> Topology:
    """An input of 32-bit numbers by text, an output in JSON, and a topic in between."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.INT32)
    moved = b.stream("in").select_key(lambda _, value: str(value)).repartition("by-value")
    moved.to("out", value_serde=serdes.INT32)
    return b.build()


@pytest.fixture
def broker(tmp_path: Path) -> MemoryBroker:
    made = MemoryBroker()
    topics = [("in", 2), ("out", 1), ("a-by-value-repartition", 1), (LETTERS, 1), ("secret", 1)]
    made.cluster("a").create([TopicSpec(name, count, {}) for name, count in topics])
    layout = StateLayout(tmp_path, "a")
    layout.application_dir.mkdir(parents=True)
    said = describe_deployment(pipeline(), ProcessingGuarantee.EXACTLY_ONCE)
    publish_deployed(layout, said)
    return made


def site(tmp_path: Path, broker: MemoryBroker, name: str | None, **more: str) -> Poller:
    """The page of one application; `name`: the pipeline that it may import."""
    settings = {
        "application.id": "a",
        "state.dir": str(tmp_path),
        "bootstrap.servers": "memory:9092",
        "errors.dead.letter.queue.topic.name": LETTERS,
        **more,
    }
    opened = {"a": lambda: Runtime(settings, brokers=broker.clients)}
    return Poller(lambda: opened, SystemClock(), lambda _: name)


@pytest.fixture
def page(tmp_path: Path, broker: MemoryBroker) -> Iterator[TestClient]:
    lookout = site(tmp_path, broker, None)
    yield TestClient(application(lookout, frozenset({"testserver"})))
    lookout.close()


def produce(
    broker: MemoryBroker,
    topic: str,
    *values: bytes | None,
    partition: int = 0,
    headers: tuple[Header, ...] = (),
) -> None:
    """Records with the key k, one millisecond apart."""
    for number, value in enumerate(values):
        broker.produce(TopicPartition(topic, partition), Record(b"k", value, number, headers))


def values(text: str) -> list[str]:
    """The values of the table of records."""
    found = re.findall(r'data-label="Value"><code>(.*?)</code>', text, re.DOTALL)
    return [html.unescape(each) for each in found]


def test_the_latest_records_of_all_partitions_come_first(
    page: TestClient, broker: MemoryBroker
) -> None:
    produce(broker, "in", *(b"%d" % number for number in range(0, 60, 2)))
    produce(broker, "in", b"odd", None, partition=1)
    text = page.get(TOPICS, params={"topic": "in", "count": "10"}).text
    assert values(text) == [f"{number}" for number in range(58, 38, -2)]
    assert "The latest 10 records of at most 32, the newest first." in text
    text = page.get(TOPICS, params={"topic": "in", "partition": "1"}).text
    assert values(text) == ["none", "odd"]


def test_records_from_an_offset_come_in_order_and_page_by_page(
    page: TestClient, broker: MemoryBroker
) -> None:
    produce(broker, "in", *(b"%d" % number for number in range(25)))
    asked = {"topic": "in", "partition": "0", "offset": "3", "count": "10"}
    text = page.get(TOPICS, params=asked).text
    assert values(text) == [str(number) for number in range(3, 13)]
    following = re.search(r'rel="next" href="([^"]+)"', text)
    assert following is not None
    text = page.get(html.unescape(following[1])).text
    assert values(text) == [str(number) for number in range(13, 23)]
    text = page.get(TOPICS, params={**asked, "offset": "24"}).text
    assert values(text) == ["24"]
    assert 'rel="next"' not in text


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"topic": "secret"}, "secret is not a topic of a"),
        ({"topic": "a-store-changelog"}, "is not a topic of a"),
        ({"topic": "in", "partition": "2"}, "the topic has 0 to 1"),
        ({"topic": "in", "partition": "-1"}, "the topic has 0 to 1"),
        ({"topic": "in", "partition": "9" * 5000}, "the topic has 0 to 1"),
        ({"topic": "in", "partition": "0", "offset": "last"}, "write a whole number"),
        ({"topic": "in", "partition": "0", "offset": "9" * 40}, "write a whole number"),
        ({"topic": "in", "offset": "3"}, "name the partition, too"),
        ({"topic": HOSTILE}, "is not a topic of a"),
        ({"topic": "out"}, "There is no record"),
        ({"topic": "out", "count": "9" * 5000}, "There is no record"),
    ],
)
def test_what_cannot_be_looked_into_is_said(
    page: TestClient, broker: MemoryBroker, asked: dict[str, str], told: str
) -> None:
    produce(broker, "secret", b"a secret")
    answer = page.get(TOPICS, params=asked)
    assert answer.status_code == 200
    assert told in html.unescape(answer.text)
    assert "a secret" not in answer.text
    assert HOSTILE not in answer.text


def test_the_list_has_the_topics_of_the_application_and_no_others(page: TestClient) -> None:
    text = page.get(TOPICS).text
    groups = re.findall(r'<optgroup label="(.*?)">(.*?)</optgroup>', text, re.DOTALL)
    found = {role: re.findall(r'value="(.*?)"', options) for role, options in groups}
    assert found == {
        "input": ["in"],
        "output": ["out"],
        "dead letters": [LETTERS],
        "between sub-topologies": ["a-by-value-repartition"],
    }
    assert page.get("/applications/nobody/topics").status_code == 404


def test_bytes_that_are_no_text_are_shown_as_bytes(page: TestClient, broker: MemoryBroker) -> None:
    produce(broker, "in", b"\xff\x00", "früh".encode(), "a\u202eb".encode(), b"\x1b[31m")
    text = page.get(TOPICS, params={"topic": "in"}).text
    assert values(text) == ["\\x1b[31m", "a\\xe2\\x80\\xaeb", "früh", "\\xff\\x00"]


def test_large_records_are_shown_in_part(page: TestClient, broker: MemoryBroker) -> None:
    produce(broker, "in", *([b"v" * 900_000] * 30))
    answer = page.get(TOPICS, params={"topic": "in", "partition": "0"})
    assert len(answer.text) < 200_000
    assert "(900,000 characters)" in answer.text
    assert "some may be missing" in answer.text, "the bytes of one look are limited"


def test_records_are_decoded_by_the_serdes_of_the_pipeline(
    tmp_path: Path, broker: MemoryBroker
) -> None:
    lookout = site(tmp_path, broker, f"{__name__}:pipeline")
    client = TestClient(application(lookout, frozenset({"testserver"})))
    try:
        for topic in ("in", "out", "a-by-value-repartition"):
            produce(broker, topic, serdes.INT32.serialize(1234567), b"no number")
            asked = {"topic": topic}
            assert values(client.get(TOPICS, params=asked).text) == ["no number", "1234567"]
            raw = client.get(TOPICS, params={**asked, "raw": "1"}).text
            assert values(raw)[1] == "\\x00\\x12\\xd6\\x87"
        headers = error_headers(ValueError("no"), {"topic": "in", "partition": "0", "offset": "0"})
        produce(broker, LETTERS, serdes.INT32.serialize(77), headers=headers)
        assert values(client.get(TOPICS, params={"topic": LETTERS}).text) == ["77"]
    finally:
        lookout.close()


def test_a_dead_letter_tells_why_where_and_of_which_record(
    page: TestClient, broker: MemoryBroker
) -> None:
    produce(broker, "in", b"one", b"two")
    place = {"topic": "in", "partition": "0", "offset": "1", "store": HOSTILE}
    with pytest.raises(ValueError, match="invalid literal") as raised:
        int(HOSTILE)
    headers = (("trace", HOSTILE.encode()), *error_headers(raised.value, place))
    produce(broker, LETTERS, HOSTILE.encode(), headers=headers)
    produce(broker, LETTERS, b"of another program")
    text = page.get(TOPICS, params={"topic": LETTERS}).text
    assert "<img" not in text
    assert HOSTILE in html.unescape(text)
    assert '<strong class="why">ValueError</strong> invalid literal for int()' in text
    assert "Traceback (most recent call last)" in text
    assert f"store {HOSTILE}" in html.unescape(text)
    origin = re.search(r'<a href="([^"]+)">in, partition 0, offset 1</a>', text)
    assert origin is not None
    assert values(page.get(html.unescape(origin[1])).text) == ["two"]
    assert "of another program" in text


def test_a_look_commits_nothing(page: TestClient, broker: MemoryBroker) -> None:
    produce(broker, "in", b"one")
    assert values(page.get(TOPICS, params={"topic": "in"}).text) == ["one"]
    tps = [TopicPartition("in", partition) for partition in range(2)]
    assert broker.cluster("a").group_offsets(tps) == {}
    assert page.post(TOPICS).status_code == 405


def test_brokers_that_are_down_or_not_known_are_a_problem_in_words(
    tmp_path: Path, page: TestClient, broker: MemoryBroker
) -> None:
    broker.stop()
    down = page.get(TOPICS, params={"topic": "in"})
    assert (down.status_code, 'role="alert"' in down.text) == (200, True)
    lookout = site(tmp_path, broker, None, **{"bootstrap.servers": ""})
    client = TestClient(application(lookout, frozenset({"testserver"})))
    try:
        unknown = client.get(TOPICS, params={"topic": "in"}).text
        assert "the page does not know the brokers" in unknown
    finally:
        lookout.close()


def test_an_application_that_never_ran_has_no_topics_yet(
    tmp_path: Path, broker: MemoryBroker
) -> None:
    StateLayout(tmp_path, "a").topology_file.unlink()
    lookout = site(tmp_path, broker, None)
    client = TestClient(application(lookout, frozenset({"testserver"})))
    try:
        assert "has not run yet, so its topics are not known" in client.get(TOPICS).text
    finally:
        lookout.close()
