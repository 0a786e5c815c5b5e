"""What a clone is: `clone.json` in its folder, which every start under its id obeys.

    <state.dir>/<clone id>/clone.json     of what it is a clone, and which topics are its own

A clone reads the topics that the original reads, and writes none that the original writes: those
have names of its own, given here, not by settings somebody might forget.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from statestore.errors import HostFailure, Misuse
from statestore.layout.files import publish
from statestore.layout.folders import StateLayout
from statestore.settings import Settings
from statestore.topology.graph import Node, SinkNode, SourceNode, TopicName, Topology


class CloneRecord(msgspec.Struct, frozen=True):
    """The original, the export, and by every topic the original writes the clone's own.

    `finished` False: it is being made, or whoever made it died.
    """

    original: str
    export_id: str
    topics: dict[str, str]
    finished: bool


def record_file(layout: StateLayout) -> Path:
    """Where it lies."""
    return layout.application_dir / "clone.json"


def read_record(layout: StateLayout) -> CloneRecord | None:
    """None if the application is no clone."""
    path = record_file(layout)
    try:
        return msgspec.json.decode(path.read_bytes(), type=CloneRecord)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise HostFailure(
            f"cannot read {path}: {error.strerror}; make the folder readable and writable, or pass "
            "another --state-dir"
        ) from error
    except msgspec.DecodeError as error:
        raise HostFailure(
            f"{path} is not a clone's record: {error}; without it a run could write the "
            "original's topics: remove the clone's folder and topics, and clone again"
        ) from error


def publish_record(layout: StateLayout, record: CloneRecord) -> None:
    """Write it."""
    publish(record_file(layout), msgspec.json.encode(record))


def as_deployed(
    topology: Topology, settings: Settings, layout: StateLayout
) -> tuple[Topology, Settings]:
    """What a start under this id runs: of a clone, with topics of its own. Twice is harmless."""
    record = read_record(layout)
    if record is None:
        return topology, settings
    if not record.finished:
        raise Misuse(
            f"{layout.application_id} is a half-made clone of {record.original}: clone again, or "
            f"remove it with `statestore exports drop-clone {layout.application_id}`"
        )
    return renamed(topology, record.topics), with_own_letters(settings, record.topics)


def renamed(topology: Topology, topics: Mapping[str, str]) -> Topology:
    """The topology over other topics; internal ones have the application's id anyway."""

    def name(topic: TopicName) -> TopicName:
        return topic if topic.internal else TopicName(topics.get(topic.name, topic.name))

    def over(node: Node) -> Node:
        match node:
            case SourceNode():
                return replace(node, topics=tuple(map(name, node.topics)))
            case SinkNode():
                return replace(node, topic=name(node.topic))
            case _:
                return node

    return replace(topology, nodes=tuple(map(over, topology.nodes)))


def with_own_letters(settings: Settings, topics: Mapping[str, str]) -> Settings:
    """The settings with dead letters going to the clone's own topic."""
    letters = settings.dead_letter_topic
    return replace(settings, dead_letter_topic=topics.get(letters, letters))
