"""A sketch of the distinct values that were seen: HyperLogLog, and the values' hashes while few.

The hash of a value is that of its JSON, so that it is the same in each process. With more than
`FEW` values the sketch has 2 048 registers and errs by 2.3 % (standard error); up to there, it is
exact but for hashes of 64 bits that are equal.
"""

import math
from hashlib import blake2b
from typing import Any, Final

import msgspec

from statestore.model.encoders import json_of

FEW: Final = 256
_BITS: Final = 11
_REGISTERS: Final = 1 << _BITS
_REST: Final = 64 - _BITS
_BIAS: Final = 0.7213 / (1 + 1.079 / _REGISTERS)


class Sketch(msgspec.Struct, frozen=True, gc=False):
    """Hashes in their order while they are few, else registers; a sketch is never changed."""

    hashes: tuple[int, ...] = ()
    registers: bytes = b""


def with_value(sketch: Sketch, value: Any) -> Sketch:
    """Return the sketch with one value more."""
    return _with_hash(sketch, int.from_bytes(blake2b(json_of(value), digest_size=8).digest()))


def merged(one: Sketch, other: Sketch) -> Sketch:
    """Return the sketch of all values of both."""
    if one.registers and other.registers:
        return Sketch((), bytes(map(max, one.registers, other.registers)))
    full, few = (other, one) if other.registers else (one, other)
    for each in few.hashes:
        full = _with_hash(full, each)
    return full


def estimate(sketch: Sketch) -> int:
    """Return about how many distinct values there were."""
    if not sketch.registers:
        return len(sketch.hashes)
    sums = math.fsum(2.0**-each for each in sketch.registers)
    raw = _BIAS * _REGISTERS * _REGISTERS / sums
    empty = sketch.registers.count(0)
    if raw <= 2.5 * _REGISTERS and empty:
        raw = _REGISTERS * math.log(_REGISTERS / empty)
    return round(raw)


def _with_hash(sketch: Sketch, found: int) -> Sketch:
    if not sketch.registers:
        if found in sketch.hashes:
            return sketch
        hashes = tuple(sorted((*sketch.hashes, found)))
        if len(hashes) <= FEW:
            return Sketch(hashes)
        registers = bytearray(_REGISTERS)
        for each in hashes:
            _raise(registers, each)
        return Sketch((), bytes(registers))
    place, rank = _place(found)
    if sketch.registers[place] >= rank:
        return sketch
    registers = bytearray(sketch.registers)
    registers[place] = rank
    return Sketch((), bytes(registers))


def _place(found: int) -> tuple[int, int]:
    """Return the register of a hash, and the place of the first bit that is set behind it."""
    return found >> _REST, _REST - (found & ((1 << _REST) - 1)).bit_length() + 1


def _raise(registers: bytearray, found: int) -> None:
    place, rank = _place(found)
    registers[place] = max(registers[place], rank)
