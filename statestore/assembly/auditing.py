"""Audits put together: settings in, a verdict out; with or without Spark."""

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from statestore.assembly.opening import open_files, read_offsets
from statestore.assembly.surroundings import SystemClock, checked_cluster, layout_of
from statestore.engines.rocks_files import link_store
from statestore.kafka.partitioner import crc32_partitions, murmur2_partitions
from statestore.kafka.witness import LogWitness
from statestore.layout.audits import AuditedStore, AuditFailure, AuditRecord, Audits
from statestore.operations.at_rest import existing_application
from statestore.operations.audit import Examined, Homes, places_of, verdict_of
from statestore.operations.audit_plan import LIVE, AuditPlan
from statestore.operations.audit_rows import Fold, Rows, Subject, fold, stored_rows
from statestore.operations.snapshots import Snapshots
from statestore.settings import Settings

HASHES: dict[str, Homes] = {"murmur2": murmur2_partitions, "crc32": crc32_partitions}


def audit(settings: Settings, stores: Collection[str] = ()) -> AuditRecord:
    """Compare stores with their logs in this process and keep the verdict where status finds it.

    `stores`: only these, all if empty. The verdict is in the record: see `audit.require_pass`.
    Unavailable if brokers or the owner of a stream task do not answer.
    """
    with planned_audit(settings, stores) as plan:
        examined = []
        for store, subjects in plan.by_store():
            one = Examined(store, subjects[0].kind, subjects[0].key_serde)
            for subject in subjects:
                plan.renew()
                one.examine(subject, rows_of(subject), fold_of(settings, subject), HASHES)
            examined.append(one)
        results = [one.result() for one in examined]
        failures = [failure for one in examined for failure in one.failures]
        return keep_audit(settings, plan, results, failures, link=None)


@contextmanager
def planned_audit(settings: Settings, stores: Collection[str] = ()) -> Iterator[AuditPlan]:
    """What is to be compared; the snapshots live as long as the `with`."""
    settings.require("application.id", "state.dir", "bootstrap.servers")
    layout = existing_application(layout_of(settings))
    clock = SystemClock()
    snapshots = Snapshots(layout, settings, clock, link_store, read_offsets)
    with (
        closing(checked_cluster(settings)) as cluster,
        AuditPlan(layout, snapshots, cluster, open_files, clock, stores) as plan,
    ):
        yield plan


def rows_of(subject: Subject) -> Iterator[Rows]:
    """The store's side, from its files."""
    with closing(open_files(Path(subject.path))) as engine:
        yield from stored_rows(engine, subject.kind, subject.bound_ms)


def fold_of(settings: Settings, subject: Subject) -> Fold:
    """The log's side."""
    with closing(LogWitness(settings)) as witness:
        return fold(witness, subject)


def keep_audit(
    settings: Settings,
    plan: AuditPlan,
    stores: list[AuditedStore],
    failures: list[AuditFailure],
    *,
    link: str | None,
) -> AuditRecord:
    """Judge, and keep the record where status and the next audit find it."""
    found = [*plan.failures, *failures]
    percent = settings.audit_superseded_max_percent
    record = AuditRecord(
        application_id=settings.application_id,
        time_ms=SystemClock().now_ms(),
        verdict=verdict_of(stores, found, superseded_max_percent=percent),
        source=LIVE,
        stores=stores,
        places=places_of(plan.subjects),
        failures=found,
        not_checked=plan.not_checked,
        link=link,
    )
    Audits(layout_of(settings)).keep(record)
    return record
