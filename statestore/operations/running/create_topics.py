"""Creates the topics of a pipeline before its first start: its own, and those it reads and writes.

A start creates internal topics by itself, and refuses if an input or output is missing. Here both
are planned together, so that a contradiction is found before anything is created: joined inputs
with different partition counts, or a topic that exists with another count than was asked for.
"""

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import msgspec

from statestore.errors import Misuse
from statestore.operations.environment import Environment
from statestore.operations.running.run import RunRequest
from statestore.operations.running.runner import check_run
from statestore.operations.start.matching import with_matches
from statestore.operations.start.topics import (
    dead_letter_topics,
    internal_topics,
    missing_topics,
    table_topics,
)
from statestore.ports import TopicSpec
from statestore.topology.graph import Topology
from statestore.topology.logs import logs
from statestore.topology.nodes import TopicName

Role = Literal["input", "output", "dead letters", "repartition", "changelog"]


class Partitions(NamedTuple):
    """How many partitions are asked for: those of single topics, and of all others of the user's.

    Where nothing is asked for, a missing input has as many as the inputs that it is joined with,
    and a missing output has one for each stream task that writes to it.
    """

    every: int | None = None
    single: Mapping[str, int] = {}

    def of(self, topic: str) -> int | None:
        """The count that is asked for, None if none is."""
        return self.single.get(topic, self.every)


class NeededTopic(msgspec.Struct, frozen=True):
    """A topic of a pipeline; `config` is what it is created with, beside the broker's defaults."""

    topic: str
    role: Role
    partitions: int
    exists: bool
    config: dict[str, str]

    def spec(self) -> TopicSpec:
        """How the topic is created."""
        return TopicSpec(self.topic, self.partitions, self.config)


def create_topics(
    environment: Environment,
    topology: Topology,
    partitions: Partitions,
    request: RunRequest,
    *,
    dry_run: bool = False,
) -> list[NeededTopic]:
    """Create the topics that are missing, and return all with what was there before.

    Misuse if a topic exists with another count than was asked for, or if nothing says how many
    partitions an input has; NotCopartitioned if joined inputs differ. Once the user's topics exist,
    internal ones are created only if a start would not be refused: an empty changelog must not take
    the place of a lost one.
    """
    environment.settings.require("application.id", "bootstrap.servers", "state.dir")
    environment.check_settings()
    needed = _plan(environment, topology, partitions)
    missing = [one for one in needed if not one.exists]
    own = [one.spec() for one in missing if one.role in {"repartition", "changelog"}]
    others = [one.spec() for one in missing if one.role not in {"repartition", "changelog"}]
    if not dry_run:
        environment.cluster.create(others)
    if not dry_run or not others:
        check_run(environment, topology, request)
    if not dry_run:
        environment.cluster.create(own)
    return needed


def check_topics(
    environment: Environment, topology: Topology, request: RunRequest
) -> list[NeededTopic]:
    """Return the topics of a pipeline; a start creates those that are missing, which are its own.

    Everything that a start refuses is refused here, and nothing is created: TopicMissing if an
    input or output is missing, NotCopartitioned if partition counts do not fit together.
    """
    environment.settings.require("application.id", "bootstrap.servers", "state.dir")
    environment.check_settings()
    check_run(environment, topology, request)
    return _plan(environment, topology, Partitions())


def _plan(
    environment: Environment, topology: Topology, partitions: Partitions
) -> list[NeededTopic]:
    settings, cluster = environment.settings, environment.cluster
    topology = with_matches(environment, topology)
    read, written = topology.topics()
    dead = dead_letter_topics(topology, settings) - written
    users = read | written | dead
    existing = cluster.partitions(sorted(users))
    _check_asked(partitions, existing, users)
    inputs = _inputs(topology, existing, partitions)
    counts = topology.partition_counts(inputs)
    widths = inputs | _outputs(topology, counts, existing, partitions)
    widths |= {topic: existing.get(topic) or _width(partitions, topic, counts) for topic in dead}
    configs = table_topics(topology)
    needed = [
        NeededTopic(
            topic,
            "input" if topic in read else "output" if topic in written else "dead letters",
            widths[topic],
            topic in existing,
            configs.get(topic, {}),
        )
        for topic in sorted(users)
    ]
    reused = logs(topology, settings).topics()
    internal = internal_topics(topology, counts, settings.application_id, reused)
    missing = {spec.name for spec in missing_topics(cluster, internal)}
    repartitions = {t.full(settings.application_id) for t in counts if t.internal}
    return needed + [
        NeededTopic(
            spec.name,
            "repartition" if spec.name in repartitions else "changelog",
            spec.partitions,
            spec.name not in missing,
            dict(spec.config),
        )
        for spec in internal
    ]


def _check_asked(partitions: Partitions, existing: Mapping[str, int], users: Iterable[str]) -> None:
    """Misuse if a topic is not the pipeline's, or exists with another count."""
    for topic in sorted(partitions.single.keys() - set(users)):
        raise Misuse(
            f"partitions of {topic!r}: the pipeline neither reads nor writes it; it has: "
            f"{', '.join(sorted(users))}"
        )
    for topic, count in existing.items():
        asked = partitions.of(topic)
        if asked is not None and asked != count:
            raise Misuse(
                f"topic {topic!r} has {count} partitions, not {asked}: existing topics are never "
                f"altered, as keys would move; ask for {count}, or only for the missing topics by "
                "their names (--partitions TOPIC=N)"
            )


def _inputs(
    topology: Topology, existing: Mapping[str, int], partitions: Partitions
) -> dict[str, int]:
    """The counts of all inputs, those that exist and those that are missing."""
    read, _ = topology.topics()
    found = {topic: count for topic, count in existing.items() if topic in read}
    asked = {topic: partitions.of(topic) for topic in read - found.keys()}
    found |= {topic: count for topic, count in asked.items() if count is not None}
    declared = {
        TopicName(name, internal=True): made.partitions
        for name, made in topology.repartitions.items()
        if made.partitions is not None
    }
    before = -1
    while before != len(found):  # a join may get its count through another one
        before = len(found)
        for _, joined in topology.joined:
            known = [declared.get(t) if t.internal else found.get(t.name) for t in joined]
            width = max((count for count in known if count is not None), default=None)
            if width is not None:
                found |= {t.name: width for t in joined if not t.internal and t.name not in found}
    if missing := sorted(read - found.keys()):
        raise Misuse(
            f"how many partitions shall {', '.join(missing)} have? Nothing says so, as there is no "
            "such topic: pass --partitions N, or --partitions TOPIC=N"
        )
    return found


def _outputs(
    topology: Topology,
    counts: Mapping[TopicName, int],
    existing: Mapping[str, int],
    partitions: Partitions,
) -> dict[str, int]:
    """The counts of the topics that are only written."""
    read, _ = topology.topics()
    found: dict[str, int] = {}
    for part in topology.sub_topologies:
        tasks = {topic: counts[topic] for topic in part.source_topics if topic in counts}
        for sink in part.sinks:
            name = sink.topic.name
            if not sink.topic.internal and name not in read:
                width = existing.get(name) or _width(partitions, name, tasks)
                found[name] = max(width, found.get(name, 0))
    return found


def _width(partitions: Partitions, topic: str, counts: Mapping[TopicName, int]) -> int:
    width = partitions.of(topic) or max(counts.values(), default=0)
    if not width:
        raise Misuse(
            f"how many partitions shall {topic} have? No topic matches the pattern that feeds it, "
            "so nothing says so: pass --partitions N, or --partitions TOPIC=N"
        )
    return width
