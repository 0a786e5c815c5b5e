"""Audits put together: settings in, a verdict out; with or without Spark."""

from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from statestore.assembly.opening import open_files, open_from_disk
from statestore.assembly.reading import snapshots_of
from statestore.assembly.surroundings import SystemClock, checked_cluster, exports_of, layout_of
from statestore.kafka.audit_log_reader import KafkaAuditLogReader
from statestore.kafka.partitioner import crc32_partitions, murmur2_partitions
from statestore.layout.audits import AuditedStore, AuditFailure, AuditRecord, Audits
from statestore.operations.at_rest import existing_application
from statestore.operations.audits.audit import Examined, Homes, places_of, verdict_of
from statestore.operations.audits.plan import AuditPlan, plan_export, plan_live
from statestore.operations.audits.report import html_of
from statestore.operations.audits.rows import Fold, Rows, Subject, fold, stored_rows
from statestore.operations.exports.catalog import FetchedStore, find
from statestore.settings import Settings

HASHES: dict[str, Homes] = {"murmur2": murmur2_partitions, "crc32": crc32_partitions}


def audit(
    settings: Settings, stores: Collection[str] = (), *, export: str | None = None
) -> AuditRecord:
    """Compare stores with their logs in this process and keep the verdict where status finds it.

    `stores`: only these, all if empty. `export`: the id of one, or "latest", in place of the live
    stores. The verdict is in the record: see `audit.require_pass`.
    Unavailable if brokers or the owner of a stream task do not answer.
    """
    time_ms = SystemClock().now_ms()
    with planned_audit(settings, stores, export=export) as plan:
        examined = []
        for store, subjects in plan.by_store():
            one = Examined(store, subjects[0].kind, subjects[0].key_serde)
            for subject in subjects:
                plan.renew()
                one.examine(subject, rows_of(settings, subject), fold_of(settings, subject), HASHES)
            examined.append(one)
        results = [one.result() for one in examined]
        failures = [failure for one in examined for failure in one.failures]
        return keep_audit(settings, plan, results, failures, time_ms=time_ms)


@contextmanager
def planned_audit(
    settings: Settings, stores: Collection[str] = (), *, export: str | None = None
) -> Iterator[AuditPlan]:
    """What is to be compared; the snapshots live as long as the `with`."""
    settings.require("application.id", "state.dir", "bootstrap.servers")
    clock = SystemClock()
    with ExitStack() as closes:
        cluster = closes.enter_context(closing(checked_cluster(settings)))
        if export is None:
            existing_application(layout_of(settings))
            plan = plan_live(snapshots_of(settings), cluster, open_files, clock, stores)
        else:
            exports = exports_of(settings)
            plan = plan_export(exports, export, cluster, open_files, clock, stores)
        yield closes.enter_context(plan)


def rows_of(settings: Settings, subject: Subject) -> Iterator[Rows]:
    """The store's side, from its files; TaskCorrupted, ExportDamaged if they cannot be read."""
    if subject.is_missing:
        return
    with ExitStack() as closes:
        path = Path(subject.path)
        if subject.export is not None:
            exports = exports_of(settings)
            (at,) = find(exports.read(subject.export), subject.store, subject.partition)
            fetched = closes.enter_context(FetchedStore(exports, at))
            path = fetched.store_dir(subject.store)
        engine = closes.enter_context(closing(open_from_disk(path)))
        yield from stored_rows(engine, subject.kind, subject.bound_ms)


def fold_of(settings: Settings, subject: Subject) -> Fold:
    """The log's side."""
    with closing(KafkaAuditLogReader(settings)) as audit_log:
        return fold(audit_log, subject)


def keep_audit(
    settings: Settings,
    plan: AuditPlan,
    stores: list[AuditedStore],
    failures: list[AuditFailure],
    *,
    time_ms: int,
    data_docs: str | None = None,
) -> AuditRecord:
    """Judge, and keep record and page where status, people and the next audit find them."""
    audits = audits_of(settings)
    found = [*plan.failures, *failures]
    percent = settings.audit_superseded_max_percent
    record = AuditRecord(
        application_id=settings.application_id,
        time_ms=time_ms,
        verdict=verdict_of(stores, found, superseded_max_percent=percent),
        source=plan.source,
        stores=stores,
        places=places_of(plan.subjects),
        failures=found,
        not_checked=plan.not_checked,
        link=audits.page(time_ms).absolute().as_uri(),
        data_docs=data_docs,
    )
    audits.keep(record, html_of(record))
    return record


def audits_of(settings: Settings) -> Audits:
    """The audits kept of an application."""
    return Audits(layout_of(settings))
