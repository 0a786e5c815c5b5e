"""The comparison of an audit: both sides of every row, joined, with what `audit.judge` finds.

Spark's workers import this module, so it must not import Great Expectations, which takes seconds.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # Spark's own way to write it

from statestore.operations.audits.audit import RowFinding, judge
from statestore.operations.audits.both_sides import AuditRow, Subject

_SHORT = 32
"""Values of up to this many bytes are shown whole, longer ones as their SHA-256."""


def compare(stored: DataFrame, logged: DataFrame, subjects: list[Subject]) -> DataFrame:
    """A row for each key and beginning on either side, with the finding of `audit.judge`."""
    place = ["subject", "row_key", "begins"]
    ours = stored.select(*place, *_side("s"))
    theirs = logged.where(~F.col("is_later")).select(*place, *_side("l"))
    later = logged.where("is_later").select(
        F.col("subject").alias("a_subject"),
        F.col("row_key").alias("a_key"),
        F.col("begins").alias("a_begins"),
        F.col("value").alias("later_value"),
        "known",
        F.lit(True).alias("later"),
    )
    same = [ours[name].eqNullSafe(theirs[name]) for name in place]
    both = ours.join(theirs, same[0] & same[1] & same[2], "full_outer").select(
        *(F.coalesce(ours[name], theirs[name]).alias(name) for name in place),
        F.coalesce("s_key", "l_key").alias("key"),
        *(f"{side}_{name}" for side in "sl" for name in ("there", "value", "ends")),
    )
    after = (both["subject"] == later["a_subject"]) & (both["begins"] == later["a_begins"])
    after &= both["row_key"].eqNullSafe(later["a_key"])
    joined = both.join(later, after, "left").select(
        "subject",
        "row_key",
        "key",
        "begins",
        _digest("s").alias("stored"),
        _digest("l").alias("logged"),
        *(f"{side}_{name}" for side in "sl" for name in ("there", "value", "ends")),
        F.coalesce("later", F.lit(False)).alias("later"),  # a column's value
        F.coalesce("known", F.lit(False)).alias("known"),  # a column's value
        "later_value",
    )
    kept = "subject int, row_key binary, key string, begins long, stored string, logged string"
    return joined.mapInArrow(finding([one.is_whole for one in subjects]), f"{kept}, finding string")


def finding(
    is_whole: list[bool],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Make the function for mapInArrow over joined rows: it adds the finding of `audit.judge`.

    `is_whole` is an argument of `audit.judge`, for each subject.
    """

    def judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            told = [RowFinding.EQUAL.value] * batch.num_rows
            same = pc.and_(
                pc.equal(batch["stored"], batch["logged"]).fill_null(False),
                pc.equal(batch["s_value"], batch["l_value"]).fill_null(False),
            )
            places = pc.indices_nonzero(pc.invert(same))
            rows = batch.take(places).to_pylist()
            for place, row in zip(places.to_pylist(), rows, strict=True):
                told[place] = judge(
                    _row(row, "s"),
                    _row(row, "l"),
                    known=row["known"],
                    later=row["later"],
                    later_value=row["later_value"],
                    is_whole=is_whole[row["subject"]],
                ).value
            kept = ["subject", "row_key", "key", "begins", "stored", "logged"]
            columns = [batch[name] for name in kept]
            yield pa.RecordBatch.from_arrays([*columns, pa.array(told)], [*kept, "finding"])

    return judged


def _row(row: dict[str, Any], side: str) -> AuditRow | None:
    return AuditRow(row[f"{side}_value"], row[f"{side}_ends"]) if row[f"{side}_there"] else None


def _side(side: str) -> list[Any]:
    named = [F.col(name).alias(f"{side}_{name}") for name in ("key", "value", "ends")]
    return [*named, F.lit(True).alias(f"{side}_there")]  # a column's value


def _digest(side: str) -> Any:
    """The value of a row on one side, as text to compare and to show; null where there is none."""
    value, ends = F.col(f"{side}_value"), F.col(f"{side}_ends")
    shown = F.when(F.length(value) <= _SHORT, F.hex(value)).otherwise(F.sha2(value, 256))
    return F.when(value.isNotNull(), F.concat_ws(" until ", shown, ends.cast("string")))
