"""Whether tables may have their source topics as logs, on this cluster and over this state.

Asked before anything is written. The topic must keep the last record of every key for good, as a
changelog does, and a store's log cannot be changed under it: its offsets speak of the old one.
"""

import logging
from collections.abc import Mapping

from statestore.errors import InvalidSetting, TopologyMismatch
from statestore.operations.deployed import Deployed
from statestore.ports import Cluster
from statestore.topology.graph import Topology
from statestore.topology.logs import Logs, log_of

_log = logging.getLogger(__name__)
_LIMITS = ("retention.ms", "retention.bytes")


def check_topics(cluster: Cluster, logs: Logs) -> None:
    """InvalidSetting if a source topic deletes records of keys that have no newer one."""
    topics = logs.topics()
    for table, why in logs.apart.items():
        _log.info("table %s keeps a changelog of its own: %s", table, why)
    if not topics:
        return
    settings = cluster.topic_settings(sorted(set(topics.values())))
    for table, topic in topics.items():
        told = settings.get(topic, {})
        limits = [f"{key}={told[key]}" for key in _LIMITS if int(told.get(key, -1)) >= 0]
        if "delete" in told.get("cleanup.policy", "") and limits:
            raise InvalidSetting(
                f"topology.optimization: topic {topic} has cleanup.policy="
                f"{told['cleanup.policy']} with {' and '.join(limits)}, so it forgets keys, and "
                f"table {table} could not be restored from it: set cleanup.policy=compact, or "
                "topology.optimization=none"
            )


def check_unchanged(
    application_id: str, topology: Topology, previous: Deployed, topics: Mapping[str, str]
) -> None:
    """TopologyMismatch if a store that was deployed would get another log."""
    for store, known in previous.stores.items():
        if store not in topology.stores or known.source_topic == topics.get(store):
            continue
        was = previous.log_of(application_id, store)
        will_be = log_of(application_id, store, topics)
        if store in topics:
            way_out = (
                "keep topology.optimization=none, or give the table's store a new name: it is "
                f"filled from {will_be}"
            )
        else:
            way_out = (
                f"keep topology.optimization and the table as it was, or start under another "
                f"application id, which reads {was} from its start"
            )
        raise TopologyMismatch(
            f"the log of store {store} was {was} and would be {will_be}, of which the offsets in "
            f"the store know nothing: {way_out}"
        )
