"""What tests of a pipeline need, of the extra `testing`: TopologyTestDriver and LocalKafka.

The commands `statestore drill` and `statestore kafka` are here as well. Nothing that runs in
production imports this package.
"""

from statestore.extras import needed
from statestore.testing.driver import TopologyTestDriver

with needed("testing", "statestore.testing"):
    from statestore.testing.local_kafka import LocalKafka

__all__ = ["LocalKafka", "TopologyTestDriver"]
