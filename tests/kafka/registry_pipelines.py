"""A pipeline whose records are in Avro of a schema registry, in topics and stores alike."""

import msgspec

import statestore as ss
from statestore import serdes
from tests.kafka.run_pipelines import prefix

URL_VARIABLE = "TEST_REGISTRY_URL"
ORDER = (
    '{"type":"record","name":"Order","namespace":"shop","fields":'
    '[{"name":"user","type":"string"},{"name":"number","type":"long"}]}'
)
TOTAL = (
    '{"type":"record","name":"Total","namespace":"shop","fields":'
    '[{"name":"count","type":"long"},{"name":"sum","type":"long"}]}'
)


class Order(msgspec.Struct):
    """A record of the input."""

    user: str
    number: int


class Total(msgspec.Struct):
    """A row of the store, and a record of the output."""

    count: int
    sum: int


REGISTRY = ss.SchemaRegistry(
    f"${{{URL_VARIABLE}}}", auto_register=True, max_retries=1, retries_wait_ms=100
)
ORDERS = serdes.avro(ORDER, Order, registry=REGISTRY)
TOTALS = serdes.avro(TOTAL, Total, registry=REGISTRY)


def totals() -> ss.Topology:
    """`in` by user through a repartition topic, summed up into `out`."""
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=ORDERS)
    orders = b.stream(f"{prefix()}-in").group_by(lambda _key, order: order.user)
    kept = ss.Materialized("totals", caching=False, value_serde=TOTALS)
    table = orders.aggregate(
        lambda: Total(0, 0),
        lambda _user, order, total: Total(total.count + 1, total.sum + order.number),
        kept,
    )
    table.to_stream().to(f"{prefix()}-out", value_serde=TOTALS)
    return b.build()
