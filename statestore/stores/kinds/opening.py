"""Opens stores of any kind: an owner over an engine, a reader over the rows of partitions."""

from collections.abc import Callable, Collection, Sequence

from statestore.model.modes import IsolationLevel
from statestore.ports import Clock, Engine
from statestore.stores import offsets
from statestore.stores.durability import LagLimits
from statestore.stores.kinds.kind import AnyReader, BuiltIn
from statestore.stores.kinds.registry import kind_of
from statestore.stores.reads import RowSource
from statestore.stores.specs import StoreSpec, placed
from statestore.stores.transaction import StagedEngine


def open_over(
    engine: Engine,
    spec: StoreSpec,
    *,
    where: str,
    limits: LagLimits,
    clock: Clock,
    level: IsolationLevel,
    task: str | None = None,
    owned_by_task: bool = False,
    made: Collection[str] = (),
    flush_soon: Callable[[StagedEngine], None] | None = None,
) -> BuiltIn:
    """Return the store over an engine with its tables. An engine it cannot use is closed.

    `task`: the stream task, for its metrics. `made`: the tables that were not there before.
    `flush_soon`: see `StagedEngine`.
    """
    kind = kind_of(spec)
    try:
        staged = StagedEngine(
            engine,
            kind=spec.kind,
            name=spec.name,
            where=where,
            tables=kind.tables[:-1],
            limits=limits,
            clock=clock,
            task=task,
            made=made,
            flush_soon=flush_soon,
            segment_interval=kind.segment_interval(spec),
        )
    except BaseException:
        engine.close()
        raise
    return kind.owner(staged, spec, level=level, owned_by_task=owned_by_task)


def reader_over(
    spec: StoreSpec,
    sources: Sequence[RowSource],
    where: str,
    release: Callable[[], None],
) -> AnyReader:
    """Return a reader of a store over one source per partition.

    `release` is called when it is closed. Misuse if a source holds a store of another kind.
    """
    kind, parts = kind_of(spec), []
    for source in sources:
        try:
            offsets.check_format(source.table(offsets.TABLE), spec.kind, where)
            parts.append(kind.part(source, spec, where))
        except Exception as error:
            raise source.failure(error) from error
    return kind.reader(parts, spec, release)


def within(spec: StoreSpec, application_id: str) -> StoreSpec:
    """Return the spec with serdes that see the changelog of this application's store."""
    if not (spec.key_serde.contextual or spec.value_serde.contextual):
        return spec
    made: StoreSpec = placed(spec, kind_of(spec).keys_field, application_id)
    return made
