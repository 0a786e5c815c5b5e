"""Places rows by a partitioner of the pipeline's own, as far as their keys tell where they lie.

Such a function takes the topic, key and value of a record and the number of partitions. A row has
the key; the value that came with it is gone. So the function is given a stand-in for the value:
one that asks anything of it is refused, and so is one that places a key differently when it is
asked again. What it says is believed as little as a hash is: each row has to lie where it puts the
row's key today (`logs_of_stores.Census`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from statestore.errors import Misuse
from statestore.model.records import Serde
from statestore.operations.environment import Environment
from statestore.operations.repartition.logs_of_stores import Place
from statestore.serdes import composed
from statestore.serdes.serde_names import parsed
from statestore.stores.specs import StoreSpec
from statestore.topology.graph import Topology
from statestore.topology.nodes import Partitioner, SinkNode, TopicName

OWN = "own"
"""What a plan says of stores that a partitioner of the pipeline's own places."""
_WAY_OUT = "start under another application id, or bring the store to where the hash puts its keys"
_METHODS = (
    "bool eq ne lt le gt ge hash len getitem iter contains str repr format bytes int float index "
    "complex call add radd sub rsub mul rmul mod rmod floordiv rfloordiv truediv rtruediv and rand "
    "or ror xor rxor lshift rlshift rshift rrshift pow rpow neg pos abs invert round reversed next "
    "divmod rdivmod matmul rmatmul enter fspath getattribute"
)
"""What stands for a value refuses: all that may be asked of an object, without underscores."""


def _stand_in() -> tuple[Any, list[str]]:
    """Return what stands for a value, and the list of what was asked of it."""
    asked: list[str] = []

    def refuse(name: str) -> Any:
        def method(*_arguments: Any) -> Any:
            asked.append(name)
            raise TypeError("nobody knows the value of the record any more")

        return method

    methods = {f"__{name}__": refuse(name) for name in _METHODS.split()}
    return type("ValueThatIsGone", (), methods)(), asked


@dataclass(frozen=True)
class OwnPartitioner:
    """The partitioner that places the rows of some stores, and for which topics it does."""

    partitioner: Partitioner
    topics: tuple[str, ...]
    serde: Serde[Any]
    hashed: Place
    """Places keys that the function leaves to the hash of what statestore writes."""

    def __call__(self, keys: Sequence[bytes], count: int) -> list[int]:
        """Return the partition of each key; Misuse if the key alone does not tell."""
        known = list(dict.fromkeys(keys))
        found: dict[bytes, int] = {}
        value, asked = _stand_in()
        for key, hashed in zip(known, self.hashed(known, count), strict=True):
            found[key] = self._place(key, value, count, hashed)
            if asked:
                raise self._refused(key, "looks at the value of a record")
        return [found[key] for key in keys]

    def tried(self, after: int) -> Place:
        """Return the same, that also places each key among so many partitions.

        What a function does with one partition does not show what it does with more.
        """

        def place(keys: Sequence[bytes], count: int) -> list[int]:
            self(keys, after)
            return self(keys, count)

        return place

    def _place(self, key: bytes, value: Any, count: int, hashed: int) -> int:
        said = []
        try:
            decoded = self.serde.deserialize(key)
            for topic in (*self.topics, self.topics[0]):
                place = self.partitioner(topic, decoded, value, count)
                said.append(hashed if place is None else place)
        except Exception as error:
            raise self._refused(key, f"raised {error!r:.200}") from error
        if any(type(place) is not int or not 0 <= place < count for place in said):
            raise self._refused(key, f"returned {said[0]!r:.99} for {count} partitions")
        if len({*said}) > 1:
            raise self._refused(key, f"returned {said[0]} and then {said[1]} for the same key")
        return said[0]

    def _refused(self, key: bytes, why: str) -> Misuse:
        return Misuse(
            f"the partitioner of topic {self.topics[0]} {why} where only key {key[:60]!r} is "
            "known: a row does not have the value of the record that made it, so a partitioner "
            f"has to go by keys alone; {_WAY_OUT}"
        )


def own_partitioner(
    topology: Topology, store: StoreSpec, application_id: str, hashed: Place
) -> OwnPartitioner | None:
    """Return what places a store's rows, if a partitioner of the pipeline's own does.

    Misuse if several do, or if it takes keys of another serde than those of the store.
    """
    placed = topology.placed_by
    topics = [t for t in topology.topics_into(store.name) if t in placed]
    if not topics:
        return None
    functions = {one.partitioner for one in _writers(topology, topics)}
    serdes = _serdes(topology, topics)
    first = topics[0].full(application_id)
    if len(functions) > 1 or len(serdes) > 1:
        raise Misuse(
            f"store {store.name}: several sinks write topic {first}, and its rows, with different "
            f"partitioners or serdes of keys, so it is not known which place a row; {_WAY_OUT}"
        )
    serde = next(iter(serdes.values()))
    if keys_of(store) != serde.name or serde.contextual or composed.placed_by(serde.name):
        raise Misuse(
            f"store {store.name} has keys of serde {keys_of(store)}, and the partitioner of topic "
            f"{first} takes those of {serde.name}: a row's key cannot be passed to it where these "
            f"differ, have windows, or need a schema registry; {_WAY_OUT}"
        )
    full = tuple(topic.full(application_id) for topic in topics)
    return OwnPartitioner(placed[topics[0]], full, serde, hashed)


def own_of(environment: Environment, topology: Topology, store: StoreSpec) -> OwnPartitioner | None:
    """Return the same for a store of an application."""
    settings = environment.settings
    hashed = environment.partitioners[settings.partitioner_hash]
    return own_partitioner(topology, store, settings.application_id, hashed)


def placed_by(environment: Environment, topology: Topology, store: StoreSpec, name: str) -> Place:
    """Return what a plan names by `name`."""
    if name != OWN:
        return environment.partitioners[name]
    own = own_of(environment, topology, store)
    assert own is not None, store.name
    return own


def _writers(topology: Topology, topics: Iterable[TopicName]) -> list[SinkNode]:
    wanted = {*topics}
    return [n for n in topology.nodes if isinstance(n, SinkNode) and n.topic in wanted]


def _serdes(topology: Topology, topics: Iterable[TopicName]) -> Mapping[str, Serde[Any]]:
    return {sink.key_serde.name: sink.key_serde for sink in _writers(topology, topics)}


def keys_of(store: StoreSpec) -> str:
    """Return the name of the serde of what places a store's rows, without windows and numbers."""
    apart = getattr(store, "apart", None)
    name: str = store.key_serde.name if apart is None else apart.keys
    while (made := parsed(name)) is not None and made.place() is not None:
        name = made.arguments[-1]
    return name
