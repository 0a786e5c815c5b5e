"""Stores of timers: the times at which processors are called again (docs/adr/0031).

A store of timers is a key-value store, and each timer has two rows. Their keys are those of
`composed.timer`, their values bytes:

    k <key> <name>             e or w, then the time    which timer there is of a key and name
    e <time, 8> <key> <name>   1                        the timers by stream time, as they are due
    w <time, 8> <key> <name>   1                        the timers by wall-clock time

Times are offset by 2^63, so that bytes sort as times do. In a key, 00 is written 00 FF and its end
00 00, so that keys sort as their own bytes do. A name is UTF-8.
"""

from dataclasses import dataclass
from typing import Generic

from statestore import serdes
from statestore.model.records import KD, K, Serde, TimerRow
from statestore.serdes import composed
from statestore.stores.specs import KeyValueSpec


@dataclass(frozen=True)
class TimerSpec(KeyValueSpec[TimerRow[K], bytes], Generic[K]):
    """A store of timers of one processor, as `timer_store` describes it."""


def timer_store(name: str, *, key_serde: Serde[KD] | None = None) -> TimerSpec[KD]:
    """Describe a store for the timers of one processor; without a serde, their keys are bytes.

    Pass it to `process()`, and take the timers from it with `context.timers(spec)`. Misuse if the
    name cannot be that of a store (SEMANTICS T1).
    """
    keys = composed.timer(key_serde or serdes.BYTES)
    return TimerSpec(name, keys, serdes.BYTES, terms=("timers",))
