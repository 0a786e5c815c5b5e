"""Ships a topology to workers, local ones and Spark's, with functions of a notebook or a script.

Functions and classes that workers cannot import travel by value, as those of Spark's own UDFs do.
A value that a module of statestore holds under a name travels as that name: operators recognize the
built-in serdes and some marks by identity.
"""

import dataclasses
import importlib
import io
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
from cloudpickle import Pickler

from statestore.errors import InvalidTopology, PipelineNotFound
from statestore.model.records import Serde
from statestore.topology.graph import Topology

_OURS = "statestore"
# All that a topology is made of.
_MODULES = ("statestore.model.", "statestore.serdes", "statestore.stores.", "statestore.topology.")
# They travel by themselves: functions and classes by name, and these by value.
_BY_THEMSELVES = (type, ModuleType, FunctionType)
_STRUCT = type(msgspec.Struct)
_CACHE_OF_MSGSPEC = "__msgspec_cache__"
# Fields of dataclasses have it, and it is recognized by identity.
_NO_DEFAULT = dataclasses.MISSING
_PLAIN = (str, bytes, int, float, bool, type(None), tuple, frozenset)


def packed(topology: Topology) -> bytes:
    """Return the topology as bytes; InvalidTopology names what cannot travel, and who uses it."""
    try:
        return _dumped(topology, _named_values())
    except Exception as error:
        raise InvalidTopology(_what_stays(topology, error)) from error


def unpacked(data: bytes) -> Topology:
    """Return the topology in a worker; PipelineNotFound says what this worker does not have."""
    try:
        topology = _Unpickler(io.BytesIO(data)).load()
    except Exception as error:
        raise PipelineNotFound(
            f"a worker cannot make the pipeline ({type(error).__name__}: {error}): give it the "
            'modules and packages of the driver, on Spark as with spark.addArtifacts("shop.py", '
            "pyfile=True), --py-files or --archives"
        ) from error
    assert isinstance(topology, Topology)
    return topology


class _Place(NamedTuple):
    """Where a module holds a value."""

    module: str
    name: str


def _named_values() -> dict[int, _Place]:
    """Where modules of statestore hold values under names, by the values' identity."""
    ours = {
        id(value): _Place(module, name)
        for module, loaded in list(sys.modules.items())
        if module.startswith(_MODULES)
        for name, value in list(vars(loaded).items())
        if not name.startswith("__") and not isinstance(value, (*_BY_THEMSELVES, *_PLAIN))
    }
    return {**ours, id(_NO_DEFAULT): _Place("dataclasses", "MISSING")}


class _Pickler(Pickler):  # type: ignore[misc]  # the library has no types
    def __init__(self, file: io.BytesIO, places: dict[int, _Place]) -> None:
        super().__init__(file)
        self._places = places

    def persistent_id(self, value: object) -> tuple[str, str] | None:
        place = self._places.get(id(value))
        return None if place is None else (place.module, place.name)

    def reducer_override(self, value: object) -> Any:
        if isinstance(value, _STRUCT) and not _is_in_a_module(value):
            raise pickle.PicklingError(
                "a msgspec.Struct would lose its fields: define it in a module that the workers "
                "import, or use a dataclass"
            )
        reduced = super().reducer_override(value)
        if isinstance(value, type) and isinstance(reduced, tuple) and len(reduced) > 2:
            make, arguments, (attributes, slots), *others = reduced
            return make, arguments, (_travelling(value, attributes), slots), *others
        return reduced


def _travelling(kind: type, attributes: dict[str, Any]) -> dict[str, Any]:
    """Return what a class that travels by value has, without what only this process has.

    What msgspec found out about a class is made again. Annotations that are text are evaluated,
    because the module with their names stays here.
    """
    kept = {name: one for name, one in attributes.items() if name != _CACHE_OF_MSGSPEC}
    own = kept.get("__annotations__", {})
    if any(isinstance(one, str) for one in own.values()):
        with suppress(Exception):  # Then they arrive as they are.
            hints = get_type_hints(kind, include_extras=True)
            kept["__annotations__"] = {name: hints[name] for name in own}
    return kept


def _is_in_a_module(kind: type) -> bool:
    found: Any = sys.modules.get(kind.__module__)
    for name in kind.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is kind and kind.__module__ != "__main__"


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, place: Any) -> Any:
        module, name = place
        return getattr(importlib.import_module(module), name)


def _dumped(value: object, places: dict[int, _Place]) -> bytes:
    file = io.BytesIO()
    _Pickler(file, places).dump(value)
    return file.getvalue()


# What cannot travel is looked for only after that was found out.


def _what_stays(topology: Topology, error: Exception) -> str:
    places = _named_values()
    for node in topology.nodes:
        way = _way_to_culprit(node, places)
        if way:
            return _told(f"node {node.name!r}", way)
    for name, spec in topology.stores.items():
        way = _way_to_culprit(spec, places)
        if way:
            return _told(f"store {name!r}", way)
    return f"the pipeline cannot travel to the workers: {type(error).__name__}: {error}"


class _Step(NamedTuple):
    """A value on the way to the culprit: what it is called by what uses it."""

    name: str
    value: Any
    why: str


def _way_to_culprit(value: object, places: dict[int, _Place]) -> list[_Step]:
    """Return the values, each a part of the one before, that cannot travel; none: it travels."""
    way: list[_Step] = []
    seen: set[int] = set()
    why = _why_not(value, places)
    name = ""
    while why is not None:
        way.append(_Step(name, value, why))
        seen.add(id(value))
        why = None
        for part_name, part in _parts(value):
            if id(part) not in seen and (why := _why_not(part, places)) is not None:
                name, value = part_name, part
                break
    return way


def _why_not(value: object, places: dict[int, _Place]) -> str | None:
    try:
        _dumped(value, places)
    except Exception as error:  # noqa: BLE001  # a class may raise anything when it is pickled
        return str(error)
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a value is made of, by name, as far as pickling it would pickle that."""
    match value:
        case FunctionType():
            yield from _parts_of_function(value)
        case MethodType() | BuiltinFunctionType():
            yield "self", value.__self__
        case partial():
            yield "func", value.func
            yield from ((f"argument {i}", it) for i, it in enumerate(value.args))
            yield from value.keywords.items()
        case Mapping():
            yield from ((f"[{key!r}]", it) for key, it in value.items())
        case list() | tuple() | set() | frozenset():
            yield from ((f"[{i}]", it) for i, it in enumerate(value))
        case type():
            # A class of msgspec is the culprit itself.
            yield from () if isinstance(value, _STRUCT) else vars(value).items()
        case Serde():
            # It is pickled as the call that makes it.
            for part in value.__reduce__()[1]:
                yield from part.items() if isinstance(part, dict) else [("", part)]
        case _ if get_args(value):
            yield from (("", it) for it in get_args(value))
        case _ if dataclasses.is_dataclass(value):
            yield from ((it.name, getattr(value, it.name)) for it in dataclasses.fields(value))
        case _:
            yield type(value).__name__, type(value)
            yield from getattr(value, "__dict__", {}).items()


def _parts_of_function(function: FunctionType) -> Iterator[tuple[str, Any]]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        with suppress(ValueError):  # It was deleted, or is not yet set.
            yield name, cell.cell_contents
    for name in sorted(_names(function.__code__) & function.__globals__.keys()):
        yield name, function.__globals__[name]
    yield from ((f"a default of {function.__name__}", it) for it in function.__defaults__ or ())


def _names(code: CodeType) -> set[str]:
    """The global names that a function, and the functions in it, may use."""
    inner = (_names(it) for it in code.co_consts if isinstance(it, CodeType))
    return set(code.co_names).union(*inner)


def _told(where: str, way: list[_Step]) -> str:
    """What cannot travel, and which function or class of the user's has it."""
    culprit = way[-1]
    kind = type(culprit.value)
    what = f"a {kind.__module__}.{kind.__qualname__}"
    if isinstance(culprit.value, type):
        what = f"the class {culprit.value.__qualname__}"
    users = [number for number, step in enumerate(way[:-1]) if _is_users(step.value)]
    if not users:
        path = ".".join(step.name for step in way if step.name and not step.name.startswith("["))
        found = f"{path or 'it'} is {what}, which"
    elif users[-1] + 2 == len(way):
        found = f"{_named(way[users[-1]].value)} uses {culprit.name!r}, {what}, which"
    else:
        used = way[users[-1] + 1].name
        found = f"{_named(way[users[-1]].value)} uses {used!r}, which has {what} in it, which"
    return (
        f"{where}: {found} cannot travel to the workers ({culprit.why}): make it there, in the "
        "function or in the processor's __init__"
    )


def _is_users(value: object) -> bool:
    if not isinstance(value, FunctionType | type):
        return False
    return (value.__module__ or "").partition(".")[0] != _OURS


def _named(value: Any) -> str:
    code = getattr(value, "__code__", None)
    line = "" if code is None else f" ({code.co_filename}, line {code.co_firstlineno})"
    return f"{value.__qualname__.rpartition('<locals>.')[2]}{line}"
