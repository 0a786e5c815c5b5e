"""statestore: exactly-once, stateful stream processing for people who run Kafka, Spark and Airflow.

`__init__.pyi` is the list of the public names (INTERFACE): each line imports one, which type
checkers and editors read as it stands. Importing this module reads them, opens nothing and imports
no client: each name is loaded when it is first used (PEP 562).
"""

import importlib

__version__ = "0.1.0"


def _homes() -> dict[str, str]:
    """Return the module of each public name, as `from MODULE import NAME as NAME` declares it."""
    declared = __spec__.loader.get_data(f"{__file__}i").decode().split("\nfrom ")
    imports = [one.replace("(", " ").split() for one in declared[1:]]
    return dict(sorted((name, module) for module, _import, name, *_ in imports))


_HOMES = _homes()
_INSTEAD = {
    "KafkaStreams": "call ss.run(topology, settings), or `statestore run`",
    "Application": "pass what an ss.StreamsBuilder builds to ss.run(topology, settings)",
    "StreamsConfig": "use ss.Settings",
    "State": "pass the spec of a store, such as ss.persistent_key_value_store(name), to process()",
    "Stores": "call ss.persistent_key_value_store(name) or one of its siblings",
    "TimeWindows": "use ss.TumblingWindows or ss.HoppingWindows",
    "UnlimitedWindows": "aggregate without windows",
    "TopologyTestDriver": "import it from statestore.testing",
    "Consumed": "pass key_serde=, value_serde= and others to stream() or table()",
    "Produced": "pass key_serde=, value_serde= and partitioner= to to()",
    "Grouped": "pass name=, key_serde= and value_serde= to group_by()",
    "Repartitioned": "pass partitions= and others to repartition()",
    "Named": "pass name= to the operator",
    "Joined": "pass name= and grace= to join()",
    "StreamJoined": "pass name= to join()",
    "TableJoined": "pass name= to join()",
    "Branched": "call split({name: predicate})",
    "Printed": "call peek(print)",
    "Serdes": "use ss.serdes",
    "KeyValue": "use a pair",
    "ValueAndTimestamp": "read with history: ss.VersionedRecord",
}
"""Names that the packages of Kafka Streams and others have, and what stands for them here."""

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name in _HOMES:
        home = _HOMES[name]
        if home == __name__:
            return importlib.import_module(f"{home}.{name}")
        found = globals()[name] = getattr(importlib.import_module(home), name)
        return found
    instead = _INSTEAD.get(name)
    hint = "" if instead is None else f": {instead}"
    raise AttributeError(f"module 'statestore' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return __all__
