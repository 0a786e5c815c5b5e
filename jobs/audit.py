"""Audit stores against their changelogs on Spark, judged by Great Expectations, with Data Docs.

    spark-submit jobs/audit.py --application-id A --state-dir D --bootstrap-servers H:P …

The same judgement as `statestore audit`, over as many Spark tasks as there are store partitions.
Prints one JSON line (the record, and the error if it is no pass), writes the same into
--summary-file, and exits with the codes of errors.py. What it logs begins with the verdict, and
ends with it where it is no pass. Data Docs lie beside the record of the audit.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # Spark's own way to write it

from jobs.audit_source import LOG, STORE, audit_frame
from jobs.datasource import TransactionalStore
from jobs.expectations import Frames, validate
from jobs.failures import failures_of
from jobs.session import spark_session
from statestore.assembly import SystemClock
from statestore.assembly.auditing import HASHES, audits_of, keep_audit, planned_audit
from statestore.cli import guarded, set_up_logging
from statestore.commands.arguments import (
    StateArguments,
    broker_option,
    parse_state_arguments,
    state_options,
    target_option,
)
from statestore.commands.audit import export_option, record_line, record_lines, store_option
from statestore.commands.running import check_summary_file, write_line
from statestore.errors import HostFailure, TaskCorrupted
from statestore.layout.audits import AuditedStore, AuditRecord
from statestore.operations.audits.audit import (
    Finding,
    absent,
    audited_store,
    judge,
    placing_hash,
    require_pass,
    sides,
    unreadable,
)
from statestore.operations.audits.rows import Row, Subject

_SHORT = 32
"""Values up to so many bytes are shown whole, longer ones as their SHA-256."""
_SHUFFLES = "spark.sql.shuffle.partitions"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@state_options
@broker_option
@target_option
@store_option
@export_option
@click.option("--summary-file", help="Also write the JSON line here, on failure too.")
def main(
    *, stores: tuple[str, ...], export: str | None, summary_file: str | None, **flags: Any
) -> None:
    """Audit stores on Spark."""
    set_up_logging()
    application_id = flags["application_id"]
    record: AuditRecord | None = None
    try:
        check_summary_file(summary_file)
        arguments = parse_state_arguments(flags)
        record = audit_on_spark(
            lambda: spark_session(f"statestore audit {application_id}"),
            arguments,
            stores,
            export=export,
        )
        _tell(record)
        require_pass(record)
        line = record_line(application_id, record, None)
        write_line(summary_file, line)
    except Exception as error:
        line = record_line(application_id, record, error)
        click.echo(line)
        with suppress(HostFailure):  # the first error is the one to tell
            write_line(summary_file, line)
        raise
    click.echo(line)


def _tell(record: AuditRecord) -> None:
    """For people, beside the JSON line: the verdict before what it rests on.

    Of one that is no pass the last line tells too, which is the error's.
    """
    for line in record_lines(record):
        click.echo(line, err=True)


def audit_on_spark(
    session: Callable[[], SparkSession],
    arguments: StateArguments,
    stores: tuple[str, ...] = (),
    *,
    export: str | None = None,
) -> AuditRecord:
    """One audit; `session` is called once the snapshots are taken, as it may take long."""
    settings = arguments.settings()
    with planned_audit(settings, stores, export=export) as plan, plan.renewing():
        time_ms = SystemClock().now_ms()
        docs = audits_of(settings).docs_folder(time_ms)
        results, failures, data_docs = _judged(session(), arguments, plan.subjects, docs)
        return keep_audit(settings, plan, results, failures, time_ms=time_ms, data_docs=data_docs)


def _judged(
    spark: SparkSession, arguments: StateArguments, subjects: list[Subject], docs: Path
) -> tuple[list[AuditedStore], list[Any], str | None]:
    if not subjects:
        return [], [], None
    spark.dataSource.register(TransactionalStore)
    if spark.conf.get(_SHUFFLES) == "200":  # Spark's default, for far more rows than is usual here
        spark.conf.set(_SHUFFLES, str(max(len(subjects), spark.sparkContext.defaultParallelism)))
    read = audit_frame(spark, STORE, subjects, arguments).persist()
    # Read once, as what comes after the offset must be of the same look at the log.
    log = audit_frame(spark, LOG, subjects, arguments).persist()
    unread = {
        row["subject"]: unreadable(subjects[row["subject"]], TaskCorrupted(row["unreadable"]))
        for row in read.where("unreadable is not null").select("subject", "unreadable").collect()
    }
    # Of files that cannot be read to their end no row proves anything.
    stored, logged = (frame.where(~F.col("subject").isin(list(unread))) for frame in (read, log))
    compared = compare(stored, logged, subjects).persist()
    found = _findings(compared)
    placements = _placements(stored, subjects)
    # Kept too: every expectation looks at its frame several times.
    frames = Frames(
        _named(compared, subjects).where(F.col("finding") != Finding.SUPERSEDED.value).persist(),
        _neighbours(_named(stored, subjects), placements).persist(),
        _places(spark, subjects, found),
    )
    wrong = sum(counts.total() - counts[Finding.EQUAL] for counts in found.values())
    run_name = f"{arguments.application_id} {docs.name}"
    judged = validate(frames, docs, run_name=run_name, wrong_rows=wrong)
    for frame in (*frames, compared, log, read):
        frame.unpersist()
    gone = [absent(one) for i, one in enumerate(subjects) if one.is_missing and found.get(i)]
    wrong_ones = failures_of(judged.unexpected, subjects, found, placements)
    failures = [*unread.values(), *gone, *wrong_ones]
    return _results(subjects, found, placements), failures, judged.link


def compare(stored: DataFrame, logged: DataFrame, subjects: list[Subject]) -> DataFrame:
    """A row per key and beginning on either side, with the finding `audit.judge` makes of it."""
    place = ["subject", "row_key", "begins"]
    ours = stored.select(*place, *_side("s"))
    theirs = logged.where(~F.col("is_later")).select(*place, *_side("l"))
    later = logged.where("is_later").select(
        F.col("subject").alias("a_subject"),
        F.col("row_key").alias("a_key"),
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
    after = (both["subject"] == later["a_subject"]) & both["row_key"].eqNullSafe(later["a_key"])
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
    ages = [one.compactable_ms if one.versioned else None for one in subjects]
    kept = "subject int, row_key binary, key string, begins long, stored string, logged string"
    return joined.mapInArrow(finding(ages), f"{kept}, finding string")


def finding(
    compactable_ms: list[int | None],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow over joined rows: adds the finding; by subject, see `audit.judge`."""

    def judged(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            told = [Finding.EQUAL.value] * batch.num_rows
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
                    begins=row["begins"],
                    known=row["known"],
                    later=row["later"],
                    later_value=row["later_value"],
                    compactable_ms=compactable_ms[row["subject"]],
                ).value
            kept = ["subject", "row_key", "key", "begins", "stored", "logged"]
            columns = [batch[name] for name in kept]
            yield pa.RecordBatch.from_arrays([*columns, pa.array(told)], [*kept, "finding"])

    return judged


def _row(row: dict[str, Any], side: str) -> Row | None:
    return Row(row[f"{side}_value"], row[f"{side}_ends"]) if row[f"{side}_there"] else None


def _side(side: str) -> list[Any]:
    named = [F.col(name).alias(f"{side}_{name}") for name in ("key", "value", "ends")]
    return [*named, F.lit(True).alias(f"{side}_there")]  # a column's value


def _digest(side: str) -> Any:
    """What a side says of a row, as text to compare and to show; null where it says nothing."""
    value, ends = F.col(f"{side}_value"), F.col(f"{side}_ends")
    shown = F.when(F.length(value) <= _SHORT, F.hex(value)).otherwise(F.sha2(value, 256))
    return F.when(value.isNotNull(), F.concat_ws(" until ", shown, ends.cast("string")))


def _named(frame: DataFrame, subjects: list[Subject]) -> DataFrame:
    """With store, stream task and partition in place of the subject's number; keys as hex."""
    facts: dict[str, list[Any]] = {
        "store": [one.store for one in subjects],
        "stream_task": [one.stream_task for one in subjects],
        "partition": [one.partition for one in subjects],
        "versioned": [one.versioned for one in subjects],
    }
    looked_up = [
        F.element_at(F.array(*map(F.lit, values)), F.col("subject") + 1).alias(name)
        for name, values in facts.items()
    ]
    rest = [name for name in frame.columns if name != "row_key"]
    return frame.select(*looked_up, F.hex("row_key").alias("row_key"), *rest)


def _neighbours(stored: DataFrame, placements: dict[str, str | None]) -> DataFrame:
    """With the partition each key belongs to, and how its versions lie to each other."""
    home = F.lit(None).cast("int")
    for store, placement in placements.items():
        if placement is not None:
            home = F.when(F.col("store") == store, F.col(placement)).otherwise(home)
    of_key = Window.partitionBy("store", "stream_task", "row_key").orderBy("begins")
    everywhere = Window.partitionBy("store", "row_key")
    is_latest = F.col("versioned") & F.col("ends").isNull()
    latest = F.sum(F.when(is_latest, 1).otherwise(0)).over(everywhere)
    return stored.select(
        "store",
        "stream_task",
        "partition",
        "row_key",
        "key",
        "begins",
        home.alias("home"),
        F.lead("begins").over(of_key).alias("next_begins"),
        F.coalesce("ends", F.lit((1 << 63) - 1)).alias("ends_at_last"),
        latest.alias("latest_of_key"),
    )


def _findings(compared: DataFrame) -> dict[int, Counter[Finding]]:
    """How many of each, by subject."""
    found: dict[int, Counter[Finding]] = {}
    for row in compared.groupBy("subject", "finding").count().collect():
        found.setdefault(row["subject"], Counter())[Finding(row["finding"])] = row["count"]
    return found


def _placements(stored: DataFrame, subjects: list[Subject]) -> dict[str, str | None]:
    """By store, the hash that places its keys."""
    partition = F.element_at(F.array(*[F.lit(s.partition) for s in subjects]), F.col("subject") + 1)
    sums = [F.count(name).alias(f"{name}_keys") for name in HASHES]
    sums += [F.sum((F.col(name) != partition).cast("int")).alias(name) for name in HASHES]
    keys: dict[str, int] = {}
    wrong: dict[str, dict[str, int]] = {one.store: dict.fromkeys(HASHES, 0) for one in subjects}
    for row in stored.groupBy("subject").agg(*sums).collect():
        store = subjects[row["subject"]].store
        keys[store] = keys.get(store, 0) + row[f"{next(iter(HASHES))}_keys"]
        for name in HASHES:
            wrong[store][name] += row[name] or 0
    return {store: placing_hash(keys.get(store, 0), wrong[store]) for store in wrong}


def _places(
    spark: SparkSession, subjects: list[Subject], found: dict[int, Counter[Finding]]
) -> DataFrame:
    rows = [
        (s.store, s.stream_task, s.offset_next, s.log_end, s.last_offset, *sides(found.get(i, {})))
        for i, s in enumerate(subjects)
    ]
    return spark.createDataFrame(
        rows,
        "store string, stream_task string, offset_next long, log_end long, last_offset long, "
        "rows long, rows_of_log long",
    )


def _results(
    subjects: list[Subject], found: dict[int, Counter[Finding]], placements: dict[str, str | None]
) -> list[AuditedStore]:
    totals = {one.store: Counter[Finding]() for one in subjects}
    kinds = {one.store: one.kind for one in subjects}
    for number, counts in found.items():
        totals[subjects[number].store] += counts
    return [
        audited_store(store, kinds[store], counts, placements[store])
        for store, counts in sorted(totals.items())
    ]


if __name__ == "__main__":
    sys.exit(guarded(main))
