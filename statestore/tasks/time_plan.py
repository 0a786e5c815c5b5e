"""What a stream task has to know of others to agree with them on event time (SEMANTICS E4d)."""

from collections.abc import Mapping, Sequence

import msgspec

from statestore.model.ids import TaskId
from statestore.topology.graph import Topology
from statestore.topology.nodes import TopicName


class TimePlan(msgspec.Struct, frozen=True):
    """The upstream tasks of a stream task, and the topics of which it is one, by their full names.

    `run`: names the run. `upstream`: by internal topic that it reads, how many tasks write it, if
    they are more than one. `channels`: by internal topic that it writes together with others, which
    of them it is, and how many partitions there are. `in_cycle`: its sub-topology reads, by way of
    others, what it writes. `settled`: in a bounded run, all there is lies before the planned ends.
    """

    run: str = ""
    upstream: dict[str, int] = {}
    channels: dict[str, tuple[int, int]] = {}
    in_cycle: bool = False
    settled: bool = True


class TimePlans:
    """The time plans of all stream tasks of one run."""

    def __init__(
        self,
        topology: Topology,
        tasks: Mapping[int, Sequence[TaskId]],
        counts: Mapping[TopicName, int],
        application_id: str,
        run: str,
    ) -> None:
        """`tasks`: by sub-topology. `counts`: the partitions of topics."""
        self._topology = topology
        self._run = run
        self._cyclic = {o for wave in topology.waves if wave.repeat for o in wave.ordinals}
        self._upstream: dict[str, int] = {}
        self._first: dict[tuple[str, int], int] = {}
        self._partitions: dict[str, int] = {}
        for part in topology.sub_topologies:
            for topic in dict.fromkeys(sink.topic for sink in part.sinks if sink.topic.internal):
                name = topic.full(application_id)
                self._first[name, part.ordinal] = self._upstream.get(name, 0)
                self._upstream[name] = self._upstream.get(name, 0) + len(tasks[part.ordinal])
                self._partitions[name] = counts[topic]
        self._application_id = application_id

    def of(self, task: TaskId) -> TimePlan:
        """Return the time plan of one stream task."""
        part, ours = self._topology.sub_topologies[task.sub_topology], self._application_id
        read = [topic.full(ours) for topic in part.source_topics if topic.internal]
        written = {sink.topic.full(ours) for sink in part.sinks if sink.topic.internal}
        many = {topic: count for topic, count in self._upstream.items() if count > 1}
        return TimePlan(
            self._run,
            {topic: many[topic] for topic in read if topic in many},
            {
                topic: (self._first[topic, part.ordinal] + task.partition, self._partitions[topic])
                for topic in sorted(written & many.keys())
            },
            part.ordinal in self._cyclic,
        )
