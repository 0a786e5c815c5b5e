"""Mistakes that users make; a checker must report each line that is marked, and no other."""

import re
from collections.abc import Sequence

import statestore as ss
from statestore import serdes

builder = ss.StreamsBuilder(key_serde=serdes.STRING)
lengths = builder.stream("lengths", value_serde=serdes.INT64)
texts = builder.table("texts", value_serde=serdes.STRING)
numbered = builder.table("numbered", key_serde=serdes.INT64, value_serde=serdes.STRING)
NEAR = ss.JoinWindows(1000)
TOTALS = ss.persistent_key_value_store("totals", key_serde=serdes.STRING, value_serde=serdes.INT64)
RATES = ss.persistent_versioned_key_value_store("rates", 10, key_serde=serdes.STRING)
MINUTE = ss.TumblingWindows(60_000)


def shout(text: str) -> str:
    return text.upper()


def shorten(number: int) -> int:
    return number // 2


class OfTexts:
    """Takes texts."""

    def __init__(self, context: ss.ProcessorContext[str, int]) -> None: ...
    def process(self, record: ss.Record[str, str]) -> None: ...


class OfBatches:
    """Takes batches."""

    def __init__(self, context: ss.ProcessorContext[str, int]) -> None: ...
    def process_batch(self, records: Sequence[ss.Record[str, int]]) -> None: ...


class Wrong:
    """Uses its stores and its context wrongly."""

    def __init__(self, context: ss.ProcessorContext[str, int]) -> None:
        self._context = context
        self._totals = context.store(TOTALS)
        self._rates = context.store(RATES)
        context.schedule(1000, ss.PunctuationType.STREAM_TIME, self._tick)  # mistake: no argument

    def process(self, record: ss.Record[str, int]) -> None:
        self._totals.put("a", "1")  # mistake: value type of a store
        self._totals.put(1, 1)  # mistake: key type of a store
        self._rates.put("a", b"1")  # mistake: a versioned store needs a time
        assert self._totals.get("a") + 1  # mistake: there may be none
        self._context.forward(ss.Record(record.key, "1", 0))  # mistake: value type forwarded
        assert record.values  # mistake: no such field

    def _tick(self) -> None: ...


# Names.
builder.streams("lengths")  # mistake: misspelled method
ss.StreamBuilder()  # mistake: misspelled class
builder.stream(re.compile(b"a-.*"))  # mistake: pattern of bytes
builder.table(re.compile("a-.*"))  # mistake: a table of a pattern
builder.stream("a", value_serde=serdes.INT46)  # mistake: misspelled serde
lengths.count("counts")  # mistake: group_by was forgotten
lengths.group_by_key().cogroup(max).cogroup(lengths, max)  # mistake: not grouped
lengths.mapValues(str)  # mistake: Java's name
ss.Materialized("counts", cashing=False)  # mistake: misspelled argument

# Functions.
lengths.map_values(shout)  # mistake: value type
lengths.map_values(lambda n: n.upper())  # mistake: value type in a lambda
lengths.map_values(lambda key, n: key + n)  # mistake: the key is a text
lengths.map_values(lambda key, n, more: n)  # mistake: too many arguments
lengths.group_by_key().aggregate({"n": len})  # mistake: no aggregate
lengths.filter(3)  # mistake: neither a function nor an expression
lengths.map_values({"n": 3})  # mistake: no expression
lengths.join(texts, lambda key, n, text: key + n)  # mistake: the key is a text
lengths.map(lambda key, n: key)  # mistake: no pair
lengths.flat_map(lambda key, n: (key, n))  # mistake: a pair instead of pairs
lengths.flat_map_values(lambda n: n + 1)  # mistake: one value instead of values
lengths.filter(lambda n: n > 1)  # mistake: the key is missing
lengths.group_by_key().reduce(lambda old, new: str(new))  # mistake: another type
lengths.group_by_key().aggregate(lambda: "", lambda key, n, a: a + n)  # mistake: accumulator
lengths.group_by_key().aggregate(str, lambda key, n, a: n)  # mistake: returns another type
lengths.left_join(texts, lambda n, text: text.upper())  # mistake: there may be no text
lengths.to_table("n").outer_join(texts, lambda n, text: n + 1)  # mistake: there may be no number

# Keys that cannot meet, streams that do not fit.
lengths.join(numbered, lambda n, text: n)  # mistake: key type of a table
texts.join(numbered, lambda a, b: a)  # mistake: key type of a table
lengths.join(lengths, lambda a, b: a)  # mistake: a stream needs windows
lengths.join(texts, lambda a, b: a, NEAR)  # mistake: a table has no windows
lengths.left_join(lengths, lambda a, b: a + b, NEAR)  # mistake: there may be no match
lengths.join(lengths, lambda a, b: a, 1000)  # mistake: no windows
lengths.join(lengths, lambda a, b: a, NEAR, tolerance=5)  # mistake: streams have windows
lengths.left_join(texts, lambda n, t: n, tolerance=1.5)  # mistake: a span
everywhere = builder.global_table("everywhere", value_serde=serdes.STRING)
lengths.join(everywhere, lambda n, text: text)  # mistake: a global table needs a key
lengths.join(everywhere, lambda n, text: text, key=lambda k, n: n)  # mistake: key of the table
lengths.left_join(everywhere, lambda n, t: t.upper(), key=lambda k, n: k)  # mistake: no row
numbered.to_stream().join(lengths, lambda a, b: a, NEAR)  # mistake: key type of a stream
lengths.merge(lengths.map_values(str))  # mistake: value type of a stream
lengths.process(OfTexts)  # mistake: value type of a processor
lengths.process_values(OfTexts)  # mistake: value type of a processor
lengths.process(OfBatches)  # mistake: a processor of batches
lengths.to_table("n").group_by(lambda key, n: key)  # mistake: no pair
lengths.to_table("n").suppress(1000)  # mistake: a span
groups = texts.group_by(lambda key, text: (text, 1))
groups.reduce(lambda a, b: a + b, lambda a, b: "")  # mistake: type of a subtractor

# Serdes and stores.
lengths.to("out", value_serde=serdes.STRING)  # mistake: value serde
lengths.to("out", partitioner=lambda topic, key, n, count: key)  # mistake: no number
lengths.to("out", partitioner=lambda key, n: n)  # mistake: too few arguments
lengths.repartition("r", partitioner=lambda topic, key, n, count: key)  # mistake: no number
lengths.to("out", key_serde=serdes.INT64)  # mistake: key serde
lengths.group_by(lambda key, n: n, key_serde=serdes.STRING)  # mistake: key serde
lengths.map_values(shorten, value_serde=serdes.STRING)  # mistake: value serde of the results
lengths.select_key(lambda key, n: n, key_serde=serdes.STRING)  # mistake: key serde
lengths.process(Wrong, value_serde=serdes.STRING)  # mistake: the processor forwards numbers
lengths.process_values(Wrong, value_serde=serdes.STRING)  # mistake: the same
lengths.process_values(Wrong, key_serde=serdes.STRING)  # mistake: it keeps its keys
lengths.join(texts, lambda n, text: n, value_serde=serdes.STRING)  # mistake: value serde
lengths.join(texts, lambda n, text: n, key_serde=serdes.INT64)  # mistake: key serde of a join
lengths.group_by_key().count(ss.Materialized("c", value_serde=serdes.STRING))  # mistake: count
texts.map_values(len, ss.Materialized("n", value_serde=serdes.STRING))  # mistake: value serde
builder.table("t", value_serde=serdes.STRING, materialized=ss.Materialized(TOTALS))  # mistake: spec
lengths.group_by_key().windowed_by(60_000)  # mistake: no windows
ss.Materialized(TOTALS, history_retention=10)  # mistake: a spec says itself
ss.persistent_key_value_store("s", serdes.STRING)  # mistake: a serde by position
ss.key_value_store("s", True)  # mistake: a medium by position
UNTYPED = ss.key_value_store("s")
TYPED: ss.KeyValueSpec[str, int] = UNTYPED  # mistake: bytes without serdes
ss.open_snapshot("state", "shop", TOTALS).get(1)  # mistake: key type of a snapshot
ss.open_snapshot("state", "shop", TOTALS).put("a", 1)  # mistake: a snapshot is read-only
totals: ss.KTable[str, str] = lengths.group_by_key().count("c")  # mistake: counts are int
