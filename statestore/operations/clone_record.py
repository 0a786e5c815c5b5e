"""Says what a clone is, in `clone.json` in its folder; every start under its id obeys it.

    <state.dir>/<clone id>/clone.json     the original, and which topics are the clone's own

A clone reads the topics that the original reads and writes none of those that the original writes.
Those topics get names of their own in this file, not in settings that somebody might forget.

Keeps I19.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from statestore.errors import HostFailure, Misuse
from statestore.layout import documents
from statestore.layout.documents import ApplicationName, ExportName, Topic
from statestore.layout.files import folders_in, publish
from statestore.layout.folders import StateLayout
from statestore.operations.environment import Environment
from statestore.operations.move_record import require_no_move
from statestore.settings import Settings
from statestore.topology.graph import Topology
from statestore.topology.nodes import Node, SinkNode, SourceNode, TopicName


class CloneRecord(msgspec.Struct, frozen=True):
    """The original, the export, and the clone's own topic for each that the original writes.

    `finished` False: the clone is being made, or the process that made it died.
    """

    original: ApplicationName
    export_id: ExportName
    topics: dict[Topic, Topic]
    finished: bool


def record_file(layout: StateLayout) -> Path:
    """The file that holds the record."""
    return layout.application_dir / "clone.json"


def read_record(layout: StateLayout) -> CloneRecord | None:
    """Read the record; None if the application is not a clone."""
    path = record_file(layout)
    way_out = (
        "without it a run could write the original's topics: remove the clone's folder and topics, "
        "and clone again"
    )
    found = documents.read(path, CloneRecord, way_out=way_out)
    if found is None:
        return None
    for topic, own in found.topics.items():
        if own not in own_names(layout.application_id, found.original, topic):
            raise HostFailure(
                f"{path} says that the clone has {own} in place of {topic}, which no clone "
                f"{layout.application_id} of {found.original} has; {way_out}"
            )
    return found


def own_names(clone_id: str, original: str, topic: str) -> tuple[str, str]:
    """The names that a clone may give its own topic in place of a sink, or of an internal topic."""
    return f"{clone_id}-{topic}", f"{clone_id}-{topic.removeprefix(f'{original}-')}"


def own_topics(layout: StateLayout, record: CloneRecord) -> list[str]:
    """The topics that may be removed with the clone; Misuse if one may be another application's.

    The topics of a clone `app` begin with `app-`, and so do those of an application `app-two`.
    """
    topics = sorted(record.topics.values())
    longer = f"{layout.application_id}-"
    for other in folders_in(layout.state_dir):
        theirs = [topic for topic in topics if topic.startswith(f"{other}-")]
        if other.startswith(longer) and theirs:
            raise Misuse(
                f"{record_file(layout)} names topic {theirs[0]}, which may be application "
                f"{other}'s: look whose it is; nothing was removed"
            )
    return topics


def publish_record(layout: StateLayout, record: CloneRecord) -> None:
    """Write the record."""
    publish(record_file(layout), msgspec.json.encode(record))


def as_deployed(environment: Environment, topology: Topology) -> tuple[Environment, Topology]:
    """What a start under this application id runs: a clone runs with topics of its own.

    Doing it twice does no harm. Misuse if a clone, or a move into this folder, is half-made.
    """
    layout = environment.layout
    require_no_move(layout)
    record = read_record(layout)
    if record is None:
        return environment, topology
    if not record.finished:
        raise Misuse(
            f"{layout.application_id} is a half-made clone of {record.original}: clone again, or "
            f"remove it with `statestore exports drop-clone {layout.application_id}`"
        )
    own = with_own_dead_letters(environment.settings, record.topics)
    return environment.with_settings(own), renamed(topology, record.topics)


def renamed(topology: Topology, topics: Mapping[str, str]) -> Topology:
    """The topology over other topics; internal topics bear the application's id anyway."""

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

    return replace(
        topology,
        nodes=tuple(map(over, topology.nodes)),
        global_sources=tuple(
            replace(source, spec=replace(source.spec, topic=name(source.topic).name))
            for source in topology.global_sources
        ),
    )


def with_own_dead_letters(settings: Settings, topics: Mapping[str, str]) -> Settings:
    """The settings, with the clone's own topic for dead letters."""
    letters = settings.dead_letter_topic
    return replace(settings, dead_letter_topic=topics.get(letters, letters))
