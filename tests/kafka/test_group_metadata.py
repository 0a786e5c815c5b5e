"""Metadata of committed offsets: the client may put bytes behind it, others may write their own."""

from collections.abc import Sequence
from contextlib import closing
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka import TopicPartition as KafkaPartition

import statestore as ss
from statestore.errors import Misuse, Unavailable
from statestore.kafka import clients, groups
from statestore.kafka.groups import metadata_of, read_group
from statestore.model.ids import TopicPartition
from statestore.settings import Settings
from statestore.tasks.commit import CommitStamp
from statestore.testing.local_kafka import LocalKafka

pytestmark = pytest.mark.kafka

STAMP = '{"number": 7, "stream_time_ms": null}'
made = clients.consumer


class Torn:
    """The real client, whose first answers have bytes behind the metadata that are not text."""

    def __init__(self, client: Consumer, times: int) -> None:
        self._client, self._left = client, times

    def committed(self, tps: Sequence[KafkaPartition], timeout_s: float) -> list[KafkaPartition]:
        found = self._client.committed(list(tps), timeout_s)
        if self._left:
            self._left -= 1
            (f"{found[0].metadata}" + "\x7f").encode("utf-16").decode("utf-8")  # raises
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def commit(kafka: LocalKafka, group: str, topic: str, metadata: str) -> Settings:
    kafka.create_topic(topic, partitions=1)
    client = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": group})
    with closing(client):
        client.commit(offsets=[KafkaPartition(topic, 0, 5, metadata)], asynchronous=False)
    return Settings.of(
        {
            "application.id": group,
            "bootstrap.servers": kafka.bootstrap_servers,
            "default.api.timeout.ms": 5_000,
        }
    )


def test_an_answer_that_is_not_text_is_asked_again(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = commit(kafka, "torn-once", "torn-once-in", STAMP)
    monkeypatch.setattr(groups, "consumer", lambda *args, **kw: Torn(made(*args, **kw), 3))
    found = read_group(settings, [TopicPartition("torn-once-in", 0)])
    assert CommitStamp.number_in(found[TopicPartition("torn-once-in", 0)].metadata) == 7


def test_one_that_never_is_ends_in_an_error_of_ours(
    kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = commit(kafka, "torn-always", "torn-always-in", STAMP)
    monkeypatch.setattr(groups, "consumer", lambda *args, **kw: Torn(made(*args, **kw), 10**9))
    with pytest.raises(Unavailable, match="cannot decode their metadata"):
        read_group(settings, [TopicPartition("torn-always-in", 0)])


@pytest.mark.parametrize("behind", ["", "V", "\x7f", "V}", "}", "5"])
def test_bytes_behind_the_end_are_cut_off(behind: str) -> None:
    answer = KafkaPartition("t", 0, 5, STAMP + behind)
    assert CommitStamp.number_in(metadata_of(answer)) == 7


def test_bytes_behind_the_end_may_be_no_text() -> None:
    class Read:
        @property
        def metadata(self) -> str:
            return (STAMP.encode() + b"\xa4\x01").decode()

    assert CommitStamp.number_in(metadata_of(cast("KafkaPartition", Read()))) == 7


@pytest.mark.parametrize("metadata", ["AgAAAXo=", "{", '{"number": -1}', "7"])
def test_what_cannot_be_read_is_no_number(metadata: str) -> None:
    answer = KafkaPartition("t", 0, 5, metadata)
    with pytest.raises(Misuse, match="another program commits in the group"):
        CommitStamp.number_in(metadata_of(answer))


def test_none_is_commit_0() -> None:
    assert CommitStamp.number_in(metadata_of(KafkaPartition("t", 0, 5))) == 0


def test_a_start_is_refused_where_another_program_commits(kafka: LocalKafka, tmp_path: Any) -> None:
    settings = commit(kafka, "shared-id", "shared-id-in", "AgAAAXo=")
    with closing(Producer({"bootstrap.servers": kafka.bootstrap_servers})) as producer:
        for _ in range(5):
            producer.produce("shared-id-in", b"1", b"key")
    builder = ss.StreamsBuilder()
    builder.stream("shared-id-in").group_by_key().count("counts")
    with pytest.raises(Misuse, match=r"committed offset 5 of input shared-id-in-0 .*AgAAAXo="):
        ss.run(
            builder.build(),
            {
                "application.id": settings.application_id,
                "bootstrap.servers": kafka.bootstrap_servers,
                "state.dir": str(tmp_path),
            },
        )
