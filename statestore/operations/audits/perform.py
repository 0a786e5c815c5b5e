"""Performs an audit in this process: plan, compare, store the verdict. Spark jobs use its parts."""

import struct
from collections.abc import Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from statestore.errors import TaskCorrupted
from statestore.layout.activity_files import Progress, Unit
from statestore.layout.audits import AuditedStore, AuditFailure, AuditRecord, Audits
from statestore.operations.activities import activities_in
from statestore.operations.audits.audit import StoreAudit, places_of, verdict_of
from statestore.operations.audits.audit_plan import AuditPlan, plan_export, plan_live
from statestore.operations.audits.both_sides import (
    AuditRows,
    ReplayedLog,
    Subject,
    as_manifest,
    replay_log,
    stored_rows,
)
from statestore.operations.audits.checks import AuditCheck, Fault
from statestore.operations.audits.derived import derived_faults
from statestore.operations.audits.report_page import audit_page
from statestore.operations.environment import Environment
from statestore.operations.exports.catalog import Exports, FetchedStore, find_exported
from statestore.operations.looking.at_rest import existing_application


def audit(
    environment: Environment,
    stores: Collection[str] = (),
    *,
    export: str | None = None,
    progress: Progress | None = None,
) -> AuditRecord:
    """Compare stores with their logs in this process and store the record where status finds it.

    `stores`: the stores to audit; all if it is empty. `export`: the id of an export, or "latest",
    to audit instead of the live stores. The verdict is in the record: see `audit.require_pass`.
    Unavailable if brokers or the owner of a stream task do not answer.
    """
    time_ms = environment.clock.now_ms()
    activities = activities_in(environment)
    with (
        planned_audit(environment, stores, export=export) as plan,
        activities.underway("audit", Unit.OFFSETS, progress) as told,
    ):
        examined = []
        told.expect(sum(subject.log_end for subject in plan.subjects))
        for store, subjects in plan.by_store():
            first = subjects[0]
            one = StoreAudit(store, first.kind, first.key_serde, placed_apart=first.placed_apart)
            for subject in subjects:
                plan.renew()
                one.examine(
                    subject,
                    store_side(environment, subject),
                    log_side(environment, subject, told),
                    environment.partitioners,
                )
            examined.append(one)
        results = [one.result() for one in examined]
        failures = [failure for one in examined for failure in one.failures]
        return keep_audit(environment, plan, results, failures, time_ms=time_ms)


@contextmanager
def planned_audit(
    environment: Environment, stores: Collection[str] = (), *, export: str | None = None
) -> Iterator[AuditPlan]:
    """Plan the comparison; the snapshots are kept until the `with` block ends."""
    environment.settings.require("application.id", "state.dir", "bootstrap.servers")
    if export is None:
        existing_application(environment.layout)
        plan = plan_live(environment, stores)
    else:
        plan = plan_export(environment, export, stores)
    with plan:
        yield plan


def store_side(environment: Environment, subject: Subject) -> Iterator[AuditRows | Fault]:
    """Yield the rows of the store from its files, then those that contradict others.

    TaskCorrupted or ExportDamaged if they cannot be read.
    """
    if subject.is_missing:
        return
    with ExitStack() as closes:
        path = Path(subject.path)
        if subject.export is not None:
            exports = Exports.of(environment)
            (at,) = find_exported(exports.read(subject.export), subject.store, subject.partition)
            fetched = closes.enter_context(FetchedStore(exports, at))
            path = fetched.store_dir(subject.store)
        engine = closes.enter_context(closing(environment.databases.read_uncached(path)))
        try:
            if subject.export is not None and not as_manifest(engine, subject, str(path)):
                yield Fault(AuditCheck.FORMAT, None)
                return
            yield from stored_rows(engine, subject.kind, subject.bound_ms, timed=subject.timed)
            yield from derived_faults(
                engine,
                subject.kind,
                any_start=subject.any_start,
                expires=subject.expires,
                interval_ms=subject.interval_ms,
                timed=subject.timed,
            )
        except (struct.error, IndexError) as error:
            raise TaskCorrupted(f"{path}: a row has not the form of its kind: {error}") from error


def log_side(
    environment: Environment, subject: Subject, progress: Progress | None = None
) -> ReplayedLog:
    """Return the rows of the log; `progress` has been told to expect its `log_end`."""
    return replay_log(environment.audit_log_reader, subject, progress)


def keep_audit(
    environment: Environment,
    plan: AuditPlan,
    stores: list[AuditedStore],
    failures: list[AuditFailure],
    *,
    time_ms: int,
    data_docs: str | None = None,
) -> AuditRecord:
    """Decide the verdict, and store the record and its page, which status and others read."""
    audits = Audits(environment.layout)
    found = [*plan.failures, *failures]
    settings = environment.settings
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
    audits.keep(record, audit_page(record))
    return record
