"""Bad input that repeats by its seed: values as extreme as their type allows, and mangled bytes.

`extreme` makes values that a reader has to take, because they fit its type: whoever works with
them must not fail. `mangled` changes a document that was right, as a person, a disk or another
program might, and a reader has to take it or to refuse it with an error of the library's own.
"""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import msgspec
from msgspec import inspect

from statestore.errors import StateStoreError

TEXTS = (
    "",
    " ",
    "\x00",
    "a\nb",
    "\x1b[31m",
    "ключ ✓ \U0001f600",
    "\u202e",
    "{}%s{0}",
    "<img src=x onerror=alert(1)>",
    "../../x",
    "/etc/passwd",
    "9" * 5000,
    "x" * 60_000,
)
NUMBERS = (0, 1, 2, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 253_402_300_799_999, 2**63 - 1)
# Whatever JSON can say in the place of something else.
OTHERS: tuple[Any, ...] = (
    *(None, True, False, "", "x", "../../x", [], {}, [[]], {"x": 1}, -1, -(2**63), 2**63, 2**64),
    *(10**30, 10**300, 1.5, -0.0, 1e308, *NUMBERS, "x" * 2000, "\x00", "٣", "1"),
)
# Texts that fit a pattern of `layout.documents`, or of another type that has one: by the pattern.
FITTING: dict[str, Sequence[str]] = {
    r"\A(?!\.)[A-Za-z0-9._-]{1,200}\Z": ("latest", "-", "a" * 200, "a..b", "0"),
    r"\A(?!\.)[A-Za-z0-9._-]{1,255}\Z": ("000012.sst", "-", "a" * 255, "CURRENT", "0"),
    r"\A(?:0|[1-9][0-9]{0,8})_(?:0|[1-9][0-9]{0,8})\Z": ("0_0", "0_1", "999999999_999999999"),
    r"\A(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}\Z": ("in", "shop-latest-changelog", "...", "a" * 249),
    r"\A[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}\Z": (
        "20261122T020000000Z-0123abcd",
        "99999999T999999999Z-ffffffff",
    ),
    r"\A[0-9a-f]{64}\Z": ("0" * 64, "0123456789abcdef" * 4),
    r"\A/[^\x00]{0,4000}\Z": ("/", "/nowhere", "/" + "x" * 4000, "/a\nb", "/proc/self"),
    r"\A[0-9a-f]{16}\Z": ("0" * 16, "0123456789abcdef"),
}


def extreme(chance: random.Random, kind: Any) -> Any:
    """A value, as JSON has it, of a type: one that fits, and that nobody expects."""
    return _extreme(chance, inspect.type_info(kind))


def _extreme(chance: random.Random, kind: inspect.Type) -> Any:
    match kind:
        case inspect.StructType(fields=fields, array_like=False):
            # A field with a default may be missing.
            said = [field for field in fields if field.required or chance.random() < 0.8]
            return {field.encode_name: _extreme(chance, field.type) for field in said}
        case inspect.StructType(fields=fields) | inspect.NamedTupleType(fields=fields):
            return [_extreme(chance, field.type) for field in fields]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            return [_extreme(chance, item) for _ in range(chance.choice((0, 1, 1, 2, 5)))]
        case inspect.TupleType(item_types=items):
            return [_extreme(chance, item) for item in items]
        case inspect.DictType(key_type=key, value_type=value):
            count = chance.choice((0, 1, 1, 2, 5))
            made = [(_extreme(chance, key), _extreme(chance, value)) for _ in range(count)]
            return {str(name): one for name, one in made}
        case inspect.UnionType(types=types):
            return _extreme(chance, chance.choice(types))
        case _:
            return _extreme_alone(chance, kind)


def _extreme_alone(chance: random.Random, kind: inspect.Type) -> Any:
    match kind:
        case inspect.StrType(pattern=str(pattern)):
            return chance.choice(FITTING[pattern])
        case inspect.StrType(max_length=length):
            return chance.choice(TEXTS)[:length]
        case inspect.IntType(ge=least, le=most):
            limits = [limit for limit in (least, most) if limit is not None]
            fitting = [n for n in NUMBERS if n >= (least or 0) and (most is None or n <= most)]
            return chance.choice([*fitting, *limits])
        case inspect.FloatType():
            return chance.choice((0.0, 5e-324, 0.1, 1e308, 3))
        case inspect.BoolType():
            return chance.random() < 0.5
        case inspect.NoneType():
            return None
        case inspect.EnumType(cls=members):
            return chance.choice([member.value for member in members])
        case _:
            raise AssertionError(f"{kind}: say here what is extreme about it")


def mangled(chance: random.Random, data: bytes) -> bytes:
    """The document with one to three things changed."""
    for _ in range(chance.choice((1, 1, 2, 3))):
        change = chance.choice((_otherwise, _otherwise, _otherwise, _in_lines, *_RAW))
        data = change(chance, data)
    return data


def _otherwise(chance: random.Random, data: bytes) -> bytes:
    """One value of a JSON document is another one, is missing, is there twice, or is nested."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _in_lines(chance, data)
    places = list(_places(document, ()))
    changed = deepcopy(document)
    if not places:
        return json.dumps(chance.choice(OTHERS)).encode()
    *above, last = chance.choice(places)
    node: Any = changed
    for step in above:
        node = node[step]
    match chance.randrange(7):
        case 0:
            del node[last]
        case 1 if isinstance(node, list):
            node.insert(last, deepcopy(node[last]))
        case 2 if isinstance(node, dict):
            node[str(chance.choice(OTHERS))] = node.pop(last)
        case 3:
            *where, other = chance.choice(places)
            there: Any = document
            for step in (*where, other):
                there = there[step]
            node[last] = deepcopy(there)
        case 4 if isinstance(node[last], int):
            node[last] += chance.choice((-1, 1, 1000, -1000, 2**31, 2**62))
        case _:
            node[last] = chance.choice(OTHERS)
    return json.dumps(changed, ensure_ascii=chance.random() < 0.5).encode(errors="replace")


def _places(node: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    inside: list[Any] = []
    if isinstance(node, dict):
        inside = list(node)
    elif isinstance(node, list):
        inside = list(range(len(node)))
    for step in inside:
        yield (*path, step)
        yield from _places(node[step], (*path, step))


def _in_lines(chance: random.Random, data: bytes) -> bytes:
    """One word of a text is another one, or a line is missing or there twice."""
    lines = data.split(b"\n")
    at = chance.randrange(len(lines))
    match chance.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines.insert(at, lines[at])
        case _:
            words = lines[at].split(b" ")
            words[chance.randrange(len(words))] = str(chance.choice(OTHERS)).encode()
            lines[at] = b" ".join(words)
    return b"\n".join(lines)


def _flipped(chance: random.Random, data: bytes) -> bytes:
    changed = bytearray(data or b"?")
    for _ in range(chance.choice((1, 1, 4, 40))):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


def _cut(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _zeros(chance: random.Random, data: bytes) -> bytes:
    """What a file may have after a power failure: its length, and nothing in it."""
    begin = chance.choice((0, chance.randrange(len(data) + 1)))
    return data[:begin] + bytes(len(data) - begin)


def _more(chance: random.Random, data: bytes) -> bytes:
    at = chance.choice((len(data), chance.randrange(len(data) + 1)))
    return data[:at] + chance.randbytes(chance.choice((1, 8, 4096))) + data[at:]


def _deep(chance: random.Random, data: bytes) -> bytes:
    bracket = chance.choice((b"[", b'{"x":', b'[{"x":'))
    deep = bracket * chance.choice((100, 5_000, 100_000))
    return chance.choice((deep, data[: max(0, len(data) - 1)] + b',"x":' + deep))


def _elsewise(chance: random.Random, data: bytes) -> bytes:
    """As another program may have saved it."""
    text = data.decode("latin-1")
    return chance.choice(
        (b"\xef\xbb\xbf" + data, text.encode("utf-16"), data.replace(b"\n", b"\r\n"), b"", data * 2)
    )


_RAW = (_flipped, _cut, _zeros, _more, _deep, _elsewise)


def encoded(document: Any) -> bytes:
    """A document as JSON."""
    return msgspec.json.encode(document)


@contextmanager
def foreseen(case: str) -> Iterator[None]:
    """An error of the library's own is right; any other one says which case it was."""
    try:
        yield
    except StateStoreError:
        pass
    except BaseException as error:
        error.add_note(f"bad input: {case}")
        raise
