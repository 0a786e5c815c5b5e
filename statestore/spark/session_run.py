"""`ss.run(…, spark=session)`: a run in a Spark session of the caller's."""

from typing import Any, Literal

from statestore.commands.arguments import RunArguments
from statestore.errors import InvalidSetting, Misuse
from statestore.extras import require_one_pyspark
from statestore.model.modes import Span, Time, to_ms
from statestore.operations.running.run import RunSummary
from statestore.operations.running.runner import run_request, start_run
from statestore.operations.shipping import packed
from statestore.runtime import Runtime
from statestore.settings import Settings, is_secret
from statestore.spark.waves import run_waves
from statestore.topology.graph import Topology


def run(
    topology: Topology,
    settings: Settings,
    spark: Any,
    *,
    until: Literal["latest"] | Time,
    run_for: Literal["forever"] | Span | None,
) -> RunSummary:
    """Run a topology on the workers of a session; see `ss.run`."""
    if not _is_session(spark):
        raise Misuse(
            f"spark={spark!r}: pass a SparkSession, as SparkSession.builder.getOrCreate() gives it"
        )
    if _is_stopped(spark):
        raise Misuse("the session of spark= was stopped: make a new one")
    require_one_pyspark()
    request = run_request(until=until, run_for=run_for)
    arguments = RunArguments(
        application_id=settings.application_id,
        pipeline="",
        overrides=_without_secrets(settings),
        until="latest" if isinstance(until, str) else str(to_ms(until)),
        run_for_ms=request.run_for_ms,
    )
    shipped = packed(topology)
    with Runtime(settings) as runtime, start_run(runtime, topology, request) as started:
        summary = run_waves(spark, arguments, started, shipped)
    summary.warn()
    return summary


def _is_session(spark: object) -> bool:
    # To import the class of Spark Connect takes packages that others do not have.
    return any(
        kind.__name__ == "SparkSession" and kind.__module__.startswith("pyspark.")
        for kind in type(spark).__mro__
    )


def _is_stopped(spark: Any) -> bool:
    told = getattr(spark, "is_stopped", None)  # only a session of Spark Connect says so
    if told is None:
        return spark.sparkContext._jsc is None  # noqa: SLF001  # there is no public way to ask
    return bool(told)


def _without_secrets(settings: Settings) -> dict[str, str]:
    told = settings.to_mapping()
    for key, value in told.items():
        if is_secret(key) and not value.startswith("${"):
            raise InvalidSetting(
                f"{key} would be sent to Spark's workers as it is: pass '${{VARIABLE}}', and set "
                "that variable for the driver and, as with spark.executorEnv.VARIABLE, for the "
                "executors"
            )
    return told
