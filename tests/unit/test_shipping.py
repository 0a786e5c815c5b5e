"""What travels to workers: every operator, and functions of a notebook; what cannot."""

import functools
import importlib
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

import statestore as ss
from statestore import serdes
from statestore.errors import InvalidTopology, PipelineNotFound
from statestore.operations.running.run import PlannedTask
from statestore.operations.shipping import packed, unpacked
from statestore.topology.nodes import SourceNode
from tests.contract import history_cases, stream_cases, table_cases, timer_cases, window_cases
from tests.contract.operator_cases import CASES, follow_table, topology

SPAN = struct.Struct(">q")
LOCK = threading.Lock()


@pytest.fixture
def _by_value() -> Iterator[None]:
    """The functions of the cases travel as if they were of a notebook."""
    modules = (stream_cases, table_cases, history_cases, timer_cases, window_cases)
    for module in modules:
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in modules:
        cloudpickle.unregister_pickle_by_value(module)


@pytest.mark.usefixtures("_by_value")
@pytest.mark.parametrize("name", CASES)
def test_an_operator_that_has_travelled_does_what_its_table_says(name: str) -> None:
    sent = topology(name)
    arrived = unpacked(packed(sent))
    assert arrived.fingerprint() == sent.fingerprint()
    follow_table(name, arrived)


def test_built_in_serdes_are_the_workers_own() -> None:
    builder = ss.StreamsBuilder(key_serde=serdes.BYTES, value_serde=serdes.INT64)
    builder.stream("in").to("out")
    source = unpacked(packed(builder.build())).nodes[0]
    assert isinstance(source, SourceNode)
    assert source.key_serde is serdes.BYTES
    assert source.value_serde is serdes.INT64


def over(function: Callable[[Any], Any], **options: Any) -> ss.Topology:
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder.stream("in", name="read").map_values(function, name="change").to("out", **options)
    return builder.build()


class Holder:
    def __init__(self, what: object) -> None:
        self.what = what

    def change(self, value: object) -> object:
        return value


class Fickle:
    def __reduce__(self) -> str:
        raise RuntimeError("not in this state")


def test_what_cannot_travel_is_named_with_its_node_and_the_function_that_uses_it() -> None:
    lock, deep = threading.Lock(), {"pool": [threading.Lock()]}

    def direct(value: object) -> object:
        with lock:
            return value

    def within(value: object) -> object:
        return [deep for _ in "a"]

    def calls(value: object) -> object:
        return direct(value)

    def by_default(value: object, opened: object = lock) -> object:
        return value

    mine = ss.Serde("MINE", SPAN.pack, lambda data: SPAN.unpack(data)[0])
    where = "node 'change': "
    told = [
        (over(direct), rf"{where}.*direct \(.*test_shipping.py, line \d+\) uses 'lock', a"),
        (over(within), rf"{where}.*within .* uses 'deep', which has a _thread.lock in it"),
        (over(calls), rf"{where}.*direct .* uses 'lock'"),
        (over(by_default), rf"{where}.*by_default .* uses 'a default of by_default'"),
        (over(Holder(lock).change), rf"{where}.*what is a _thread.lock"),
        (over(functools.partial(dict, opened=lock)), rf"{where}.*opened is a _thread.lock"),
        (
            over(Holder(Fickle()).change),
            r"what is a .*Fickle, which cannot travel to the workers \(not in this state\)",
        ),
        (over(str, value_serde=mine), r"value_serde.serialize.self is a _struct.Struct"),
    ]
    for pipeline, words in told:
        with pytest.raises(InvalidTopology, match=f"(?s){words}.*: make it there"):
            packed(pipeline)


def test_a_struct_of_a_notebook_is_refused_as_it_would_arrive_without_its_fields() -> None:
    class Order(msgspec.Struct):
        cents: int

    def cents(value: object) -> int:
        return msgspec.convert(value, Order).cents

    with pytest.raises(InvalidTopology, match=r"cents .* uses 'Order'.*would lose its fields"):
        packed(over(cents))
    assert packed(over(lambda value: PlannedTask("0_0", [], bounded=value, nonce="")))


def test_a_processor_class_of_a_notebook_is_named_with_what_it_holds() -> None:
    notebook = types.ModuleType("notebook")
    code = (
        "class Guarded:\n"
        "    guard = LOCK\n"
        "    def __init__(self, context): self.context = context\n"
        "    def process(self, record): self.context.forward(record)\n"
    )
    vars(notebook)["LOCK"] = LOCK
    exec(code, vars(notebook))
    builder = ss.StreamsBuilder()
    builder.stream("in").process(notebook.Guarded, name="guard").to("out")
    with pytest.raises(
        InvalidTopology, match=r"node 'guard': Guarded uses 'guard', a _thread\.lock"
    ):
        packed(builder.build())


def test_a_worker_without_the_modules_says_how_to_bring_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def same(value):\n    return value\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    only_here = importlib.import_module("only_here")
    sent = packed(over(only_here.same))
    assert unpacked(sent).topics() == ({"in"}, {"out"})
    monkeypatch.undo()
    monkeypatch.delitem(sys.modules, "only_here")
    with pytest.raises(PipelineNotFound, match=r"No module named 'only_here'.*addArtifacts"):
        unpacked(sent)


NOTEBOOK = """
from __future__ import annotations

import dataclasses
import enum
import sys
import typing

import msgspec

import statestore as ss
from statestore import serdes
from statestore.operations.shipping import packed


class Size(enum.Enum):
    SMALL = "small"


class Note(typing.NamedTuple):
    text: str


class Place(typing.TypedDict):
    city: str


@dataclasses.dataclass
class Order:
    cents: typing.Annotated[int, msgspec.Meta(ge=0)]
    notes: list[Note]
    place: Place
    parts: list[Order] = dataclasses.field(default_factory=list)
    size: Size | None = None


ORDER = serdes.json(Order)
ORDERS = serdes.json(dict[str, Order])


def doubled(order: Order) -> dict[str, Order]:
    return {"twice": dataclasses.replace(order, cents=2 * order.cents)}


b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=ORDER)
b.stream("in").map_values(doubled).to("out", value_serde=ORDERS)
sys.stdout.buffer.write(packed(b.build()))
"""
WORKER = """
import sys

from statestore.operations.shipping import unpacked
from statestore.testing import TopologyTestDriver

with TopologyTestDriver(unpacked(sys.stdin.buffer.read())) as driver:
    text = b'{"cents": 5, "notes": [["a"]], "place": {"city": "Ulm"}, "size": "small"}'
    driver.pipe_bytes("in", b"k", text)
    (record,) = driver.read("out")
    print(record.value)
"""


def test_types_of_a_notebook_travel_with_the_serdes_of_their_json() -> None:
    sent = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, check=True)
    ran = subprocess.run(
        [sys.executable, "-c", WORKER], input=sent.stdout, capture_output=True, check=True
    )
    assert ran.stdout.decode().strip() == (
        "{'twice': Order(cents=10, notes=[Note(text='a')], place={'city': 'Ulm'}, parts=[], "
        "size=<Size.SMALL: 'small'>)}"
    )


def test_a_struct_of_a_notebook_is_named_that_only_a_serde_uses() -> None:
    class Order(msgspec.Struct):
        cents: int

    for serde in (serdes.json(Order), serdes.json(list[Order])):
        with pytest.raises(
            InvalidTopology,
            match=r"value_serde is the class .*Order.*would lose its fields",
        ):
            packed(over(str, value_serde=serde))
    migrate = ss.Migration(serdes.json(Order), lambda old: [old.cents])
    builder = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serdes.JSON)
    builder.stream("in").to_table(ss.Materialized("kept", migrate=migrate))
    with pytest.raises(InvalidTopology, match=r"the class .*Order.*would lose its fields"):
        packed(builder.build())
