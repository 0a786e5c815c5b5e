"""What tests of a pipeline need: TopologyTestDriver, and LocalKafka for a real broker."""

from statestore.testing.driver import TopologyTestDriver
from statestore.testing.local_kafka import LocalKafka

__all__ = ["LocalKafka", "TopologyTestDriver"]
