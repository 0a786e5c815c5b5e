"""Audit stores against their changelogs on Spark, judged by Great Expectations, with Data Docs.

    spark-submit jobs/audit.py --application-id A --state-dir D --bootstrap-servers H:P …

It judges as `statestore audit` does, with a Spark task for each partition of a store. It prints one
JSON line (the record, and the error unless the audit is passed), writes the same line into
--summary-file, and exits with the codes of errors.py. Its log begins with the verdict, and also
ends with it unless the audit is passed. Data Docs lie beside the record of the audit.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import click
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812  # Spark's own way to write it

from statestore.cli import set_up_logging
from statestore.commands.arguments import (
    StateArguments,
    broker_option,
    parse_state_arguments,
    state_options,
    target_option,
)
from statestore.commands.audit import export_option, record_line, record_lines, store_option
from statestore.commands.progress import logged_activities
from statestore.commands.running import check_summary_file, write_line
from statestore.errors import HostFailure, TaskCorrupted
from statestore.extras import needed
from statestore.layout.audits import AuditedStore, AuditedWriter, AuditRecord, Audits
from statestore.operations.audits.audit import (
    RowFinding,
    absent,
    audited_store,
    placing_hash,
    require_pass,
    row_counts,
    unreadable,
)
from statestore.operations.audits.both_sides import Subject
from statestore.operations.audits.checks import AuditCheck
from statestore.operations.audits.perform import keep_audit, planned_audit
from statestore.operations.audits.writers import Writers
from statestore.runtime import PARTITIONERS, Runtime
from statestore.spark.audit_failures import failures_of
from statestore.spark.audit_source import LOG, STORE, audit_frame
from statestore.spark.comparison import compare
from statestore.spark.datasource import TransactionalStore
from statestore.spark.program import run_program
from statestore.spark.session import parallelism, spark_session

with needed("gx", "an audit on Spark"):
    from statestore.spark.expectations import Frames, validate

_SHUFFLES = "spark.sql.shuffle.partitions"
_PROVE_NOTHING = [RowFinding.SUPERSEDED.value, RowFinding.UNSEEN.value]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@state_options
@broker_option
@target_option
@store_option
@export_option
@click.option("--summary-file", help="Also write the JSON line here, on failure too.")
def command(
    *, stores: tuple[str, ...], export: str | None, summary_file: str | None, **flags: Any
) -> None:
    """Audit stores on Spark."""
    application_id = flags["application_id"]
    record: AuditRecord | None = None
    try:
        set_up_logging()
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
    """Tell people what the JSON line tells programs: the verdict first, then what it rests on.

    Unless the audit is passed, the last line of the log, which is the error's, repeats the verdict.
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
    """Audit once. `session` is called after the snapshots are taken, as a session may take long."""
    with (
        Runtime(arguments.settings()) as runtime,
        planned_audit(runtime, stores, export=export) as plan,
        plan.renewing(),
        logged_activities(runtime),
    ):
        time_ms = runtime.clock.now_ms()
        docs = Audits(runtime.layout).docs_folder(time_ms)
        results, failures, data_docs = _judged(session(), arguments, plan.subjects, docs)
        return keep_audit(runtime, plan, results, failures, time_ms=time_ms, data_docs=data_docs)


def _judged(
    spark: SparkSession, arguments: StateArguments, subjects: list[Subject], docs: Path
) -> tuple[list[AuditedStore], list[Any], str | None]:
    if not subjects:
        return [], [], None
    spark.dataSource.register(TransactionalStore)
    if spark.conf.get(_SHUFFLES) == "200":  # Spark's default, for far more rows than is usual here
        spark.conf.set(_SHUFFLES, str(max(len(subjects), parallelism(spark))))
    read = audit_frame(spark, STORE, subjects, arguments).persist()
    # The log is read once: what comes after the offset must be of the same reading.
    log = audit_frame(spark, LOG, subjects, arguments).persist()
    unread = {
        row["subject"]: unreadable(subjects[row["subject"]], TaskCorrupted(row["unreadable"]))
        for row in read.where("unreadable is not null").select("subject", "unreadable").collect()
    }
    others = read.where(F.col("fault") == AuditCheck.FORMAT.value).select("subject").collect()
    # Rows of another kind, or files that cannot be read to their end, prove nothing.
    void = [*unread, *(row["subject"] for row in others)]
    kept, logged = (frame.where(~F.col("subject").isin(void)) for frame in (read, log))
    stored = kept.where("fault is null")
    compared = compare(stored, logged.where("fault is null"), subjects).persist()
    found = _findings(compared)
    placements = _placements(stored, subjects)
    written = _written(stored, subjects)
    # These are kept as well: every expectation reads its frame several times.
    frames = Frames(
        _named(compared, subjects).where(~F.col("finding").isin(_PROVE_NOTHING)).persist(),
        _neighbours(_named(stored, subjects), placements).persist(),
        _places(spark, subjects, found),
        _beside(read.where("unreadable is null"), logged, subjects).persist(),
    )
    wrong = sum(counts.total() - counts[RowFinding.EQUAL] for counts in found.values())
    run_name = f"{arguments.application_id} {docs.name}"
    judged = validate(frames, docs, run_name=run_name, wrong_rows=wrong)
    for frame in (*frames, compared, log, read):
        frame.unpersist()
    gone = [absent(one) for i, one in enumerate(subjects) if one.is_missing and found.get(i)]
    wrong_ones = failures_of(judged.unexpected, subjects, found, placements)
    failures = [*unread.values(), *gone, *wrong_ones]
    return _results(subjects, found, placements, written), failures, judged.link


def _named(frame: DataFrame, subjects: list[Subject]) -> DataFrame:
    """The frame with store, stream task and partition in place of the subject's number.

    Keys are in hexadecimal.
    """
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
    """The rows with the partition each key belongs to, and what tells whether versions overlap."""
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
        "written_by",
    )


def _beside(kept: DataFrame, logged: DataFrame, subjects: list[Subject]) -> DataFrame:
    """The rows that contradict others or the log, and one without a fault for each store."""
    told = ["subject", "row_key", "key", "fault"]
    rows = _named(kept.select(*told).unionByName(logged.select(*told)), subjects)
    sound = rows.select("store", "stream_task").distinct()
    named = ["store", "stream_task", "key", "fault"]
    none = F.lit(None).cast("string")
    return sound.select("store", "stream_task", none.alias("key"), none.alias("fault")).unionByName(
        rows.where("fault is not null").select(*named)
    )


def _findings(compared: DataFrame) -> dict[int, Counter[RowFinding]]:
    """How many rows of each finding there are, by subject."""
    found: dict[int, Counter[RowFinding]] = {}
    for row in compared.groupBy("subject", "finding").count().collect():
        found.setdefault(row["subject"], Counter())[RowFinding(row["finding"])] = row["count"]
    return found


def _written(stored: DataFrame, subjects: list[Subject]) -> dict[str, list[AuditedWriter]]:
    """How many rows each serde wrote, by store."""
    writers = {one.store: Writers(one.writers) for one in subjects}
    counts = {one.store: Counter[str | None]() for one in subjects}
    for row in stored.groupBy("subject", "written_by").count().collect():
        counts[subjects[row["subject"]].store][row["written_by"]] += row["count"]
    return {store: writers[store].told(rows) for store, rows in counts.items()}


def _placements(stored: DataFrame, subjects: list[Subject]) -> dict[str, str | None]:
    """The hash that places the keys of each store."""
    partition = F.element_at(F.array(*[F.lit(s.partition) for s in subjects]), F.col("subject") + 1)
    sums = [F.count(name).alias(f"{name}_keys") for name in PARTITIONERS]
    sums += [F.sum((F.col(name) != partition).cast("int")).alias(name) for name in PARTITIONERS]
    keys: dict[str, int] = {}
    wrong: dict[str, dict[str, int]] = {
        one.store: dict.fromkeys(PARTITIONERS, 0) for one in subjects
    }
    for row in stored.groupBy("subject").agg(*sums).collect():
        store = subjects[row["subject"]].store
        keys[store] = keys.get(store, 0) + row[f"{next(iter(PARTITIONERS))}_keys"]
        for name in PARTITIONERS:
            wrong[store][name] += row[name] or 0
    apart = _placed_apart(subjects)
    return {
        store: None if store in apart else placing_hash(keys.get(store, 0), wrong[store])
        for store in wrong
    }


def _placed_apart(subjects: list[Subject]) -> set[str]:
    """The stores whose rows a partitioner of the user's places."""
    return {one.store for one in subjects if one.placed_apart}


def _places(
    spark: SparkSession, subjects: list[Subject], found: dict[int, Counter[RowFinding]]
) -> DataFrame:
    rows = [
        (
            s.store,
            s.stream_task,
            s.offset_next,
            s.log_end,
            s.last_offset,
            *row_counts(found.get(i, {})),
        )
        for i, s in enumerate(subjects)
    ]
    return spark.createDataFrame(
        rows,
        "store string, stream_task string, offset_next long, log_end long, last_offset long, "
        "rows long, rows_of_log long",
    )


def _results(
    subjects: list[Subject],
    found: dict[int, Counter[RowFinding]],
    placements: dict[str, str | None],
    written: dict[str, list[AuditedWriter]],
) -> list[AuditedStore]:
    totals = {one.store: Counter[RowFinding]() for one in subjects}
    kinds = {one.store: one.kind for one in subjects}
    for number, counts in found.items():
        totals[subjects[number].store] += counts
    apart = _placed_apart(subjects)
    return [
        audited_store(
            store,
            kinds[store],
            counts,
            placements[store],
            placed_apart=store in apart,
            writers=written[store],
        )
        for store, counts in sorted(totals.items())
    ]


def main() -> NoReturn:
    """Run the job with the flags of this process."""
    run_program(command)


if __name__ == "__main__":
    main()
