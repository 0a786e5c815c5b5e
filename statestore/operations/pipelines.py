"""Loads pipelines by name: `module:function` in, the topology out; and asks one for its serdes."""

import importlib
import inspect
import re
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from statestore.errors import Misuse, PipelineNotFound, StateStoreError
from statestore.model.records import Serde
from statestore.stores.kinds.registry import kind_of
from statestore.topology.graph import Topology

# Somebody names a file where Python wants the name of a module.
_FILE = re.compile(r"[/\\]|\.py$|^\.")


class StoreSerdes(NamedTuple):
    """The serdes of one store; of a store with windows, `key` is that of the keys themselves."""

    key: Serde[Any]
    value: Serde[Any]


def serdes_of(topology: Topology, store: str, application_id: str) -> StoreSerdes:
    """Return the serdes that a pipeline gives a store; Misuse names the stores that it has."""
    shared = topology.shared_specs
    if store in shared:
        return StoreSerdes(shared[store].key_serde, shared[store].value_serde)
    spec = topology.stores.get(store)
    if spec is None:
        known = sorted({*topology.stores, *shared})
        raise Misuse(
            f"the pipeline has no store {store!r}; it has: {', '.join(known) or 'none'}; name the "
            "pipeline that has it, or read the store in bytes"
        )
    key = kind_of(spec).keys(spec)
    return StoreSerdes(
        key.in_store(store, "key", application_id),
        spec.value_serde.in_store(store, "value", application_id),
    )


def load_pipeline(path: str) -> Topology:
    """Import `module:function` and call it; PipelineNotFound says what could not be found.

    The current folder is on the import path, as it is with `python -m`.
    """
    module_name, _, function_name = path.partition(":")
    if not module_name or not function_name.isidentifier() or _FILE.search(module_name):
        raise PipelineNotFound(f"pipeline {path!r}: pass module:function, {_as_module(path)}")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise PipelineNotFound(
            f"pipeline {path!r}: cannot import {module_name!r} ({error}): "
            "is it on PYTHONPATH of driver and workers?"
        ) from error
    except StateStoreError:
        raise
    except (Exception, SystemExit) as error:
        raise _broken_pipeline(path, f"importing {module_name!r}", error) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        own = [
            name
            for name, it in vars(module).items()
            if inspect.isfunction(it) and it.__module__ == module_name and name[0] != "_"
        ]
        raise PipelineNotFound(
            f"pipeline {path!r}: {module_name} has no function {function_name!r}; it has: "
            f"{', '.join(own) or 'none'}"
        )
    try:
        topology = function()
    except StateStoreError:
        raise
    except (Exception, SystemExit) as error:
        raise _broken_pipeline(path, f"calling {function_name!r}", error) from error
    if not isinstance(topology, Topology):
        raise PipelineNotFound(
            f"pipeline {path!r} returned {type(topology).__name__}, not a Topology: "
            "return b.build()"
        )
    return topology


def _as_module(path: str) -> str:
    """What to pass in place of a file or a call."""
    name, colon, function = path.rpartition(":")
    file, folder = Path(name if colon else path), ""
    if file.is_absolute() or ".." in file.parts:
        folder = f", started in the folder {file.parent.resolve()}"
        file = Path(file.name)
    module = ".".join(file.parts).removesuffix(".py")
    function = function.removesuffix("()") if colon else ""
    if not module or not function.isidentifier():
        return "such as shop.orders:topology"
    return f"which is {module}:{function}{folder}"


def _broken_pipeline(path: str, doing: str, error: BaseException) -> PipelineNotFound:
    *_, last = traceback.extract_tb(error.__traceback__)
    return PipelineNotFound(
        f"pipeline {path!r}: {doing} raised {type(error).__name__}: {error} "
        f"({last.filename}, line {last.lineno}): correct the pipeline"
    )
