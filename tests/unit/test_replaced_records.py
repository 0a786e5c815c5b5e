"""Record.replace: in C, and in Python where there is no compiler."""

import importlib.util
import inspect
import pickle
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import statestore as ss
from statestore import model
from statestore.model import records

_FIELDS = ss.Record._fields
_ANYTHING = st.one_of(st.none(), st.integers(), st.binary(), st.text(), st.lists(st.integers()))


def _without_a_compiler() -> ModuleType:
    """The module as it is where the extension was not built."""
    name = "statestore.model.records_in_python"
    spec = importlib.util.spec_from_file_location(name, records.__file__)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, made)
        patch.setitem(sys.modules, "statestore.model._record", None)
        patch.delattr(model, "_record")
        spec.loader.exec_module(made)
    return made


_OURS: Any = ss.Record
_PLAIN: Any = _without_a_compiler().Record


def test_both_ways_are_there() -> None:
    assert inspect.isfunction(_PLAIN.replace)
    assert type(_OURS.replace).__name__ == "method_descriptor"
    assert ss.Record.replace.__doc__ == _PLAIN.replace.__doc__
    names = [list(inspect.signature(it.replace).parameters) for it in (ss.Record, _PLAIN)]
    assert names[0] == names[1] == ["self", *_FIELDS]


@given(
    st.tuples(*[_ANYTHING] * len(_FIELDS)),
    st.dictionaries(st.sampled_from(_FIELDS), _ANYTHING),
)
def test_both_change_the_fields_that_are_named_and_no_others(
    fields: tuple[Any, ...], changes: dict[str, Any]
) -> None:
    ours, plain = ss.Record(*fields), _PLAIN(*fields)
    made = ours.replace(**changes)
    assert type(made) is ss.Record
    assert tuple(made) == tuple(plain.replace(**changes)) == tuple(ours._replace(**changes))
    assert tuple(ours) == fields
    assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("of", [ss.Record, _PLAIN], ids=["in C", "in Python"])
def test_other_arguments_are_type_errors(of: Any) -> None:
    record = of(b"k", b"v", 1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'time'"):
        record.replace(time=1)
    with pytest.raises(TypeError):
        record.replace(b"k")
    with pytest.raises(TypeError):
        of.replace()
    with pytest.raises(TypeError):
        _OURS.replace((b"k", b"v"), key=b"l")


def test_a_name_that_was_made_at_run_time_is_known_too() -> None:
    made = {f"{unit}_ms": 7 for unit in ["timestamp"]}
    assert _OURS(b"k", b"v", 1).replace(**made).timestamp_ms == 7
    with pytest.raises(TypeError, match="unexpected"):
        _OURS(b"k", b"v", 1).replace(**{"\ud800": 7})


def test_what_is_left_out_and_what_is_new_are_released() -> None:
    class Told:
        """An object that tells of its end."""

        def __init__(self, ended: list[str], name: str) -> None:
            self._ended, self._name = ended, name

        def __del__(self) -> None:
            self._ended.append(self._name)

    ended: list[str] = []
    record = ss.Record(Told(ended, "key"), Told(ended, "value"), 1)
    other = record.replace(value=Told(ended, "other"))
    del record
    assert ended == ["value"]
    del other
    assert sorted(ended[1:]) == ["key", "other"]


def test_a_record_of_an_own_type_stays_one() -> None:
    class Marked(ss.Record[bytes, bytes]):
        """A user's own."""

    assert type(Marked(b"k", b"v", 1).replace(value=b"w")) is Marked
