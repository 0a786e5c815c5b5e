"""Values of a store change twice under a pipeline that never begins again, with a real broker.

Three versions of a pipeline follow each other, for a store of each kind, with functions that make
new values and with Avro schemas that read old ones. Rows of all three lie side by side; they are
read, counted, written anew, and restored from the changelog, and are always the same values.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import statestore as ss
from statestore import serdes
from statestore.operations.audits.audit import require_pass
from statestore.operations.audits.perform import audit
from statestore.operations.rewriting.migrate import migrate
from statestore.runtime import Runtime
from statestore.settings import Settings
from tests.contract.migrated_worlds import SERDES, SHAPES, STEPS, plain
from tests.kafka.run_rig import START_MS, App

pytestmark = pytest.mark.kafka
HOUR_MS = 3_600_000


def schema(*names: str) -> dict[str, Any]:
    fields = [{"name": name, "type": "long", "default": 0} for name in names]
    return {"type": "record", "name": "Sum", "fields": fields}


AVRO: tuple[ss.Serde[Any], ...] = tuple(
    map(serdes.avro, (schema("n"), schema("n", "count"), schema("more", "n", "count")))
)
RESOLVED = (ss.Migration(AVRO[0]), ss.Migration(AVRO[1]))
AVRO_SHAPES: tuple[Callable[[int], Any], ...] = (
    lambda number: {"n": number},
    lambda number: {"n": number, "count": 0},
    lambda number: {"more": 0, "n": number, "count": 0},
)
FAMILIES = {"functions": (SERDES, STEPS, SHAPES), "avro": (AVRO, RESOLVED, AVRO_SHAPES)}


def pipeline(shape: str, family: str, version: int, topic: str) -> ss.Topology:
    values, steps, shapes = FAMILIES[family]
    shaped, serde = shapes[version], values[version]
    history_ms = 24 * HOUR_MS if shape == "history" else None
    kept: ss.Materialized[str, Any] = ss.Materialized(
        "kept",
        value_serde=serde,
        migrate=steps[:version] or None,
        history_retention=history_ms,
    )
    b = ss.StreamsBuilder(key_serde=serdes.STRING, value_serde=serde)
    records = b.stream(topic, value_serde=serdes.JSON)
    numbers = records.map_values(lambda value: int(value["number"]))
    if shape == "history":
        numbers.map_values(shaped).to_table(kept)
        return b.build()
    grouped: Any = numbers.group_by_key()
    if shape == "windows":
        grouped = grouped.windowed_by(ss.TumblingWindows(1000, retention=24 * HOUR_MS))
    grouped.aggregate(
        lambda: shaped(0), lambda _key, number, total: shaped(plain(total) + number), kept
    )
    return b.build()


FIRST = [("rows", "functions"), ("windows", "avro"), ("history", "functions")]
OTHERS = [("rows", "avro"), ("windows", "functions"), ("history", "avro")]


@pytest.mark.parametrize(
    ("shape", "family"),
    [*FIRST, *(pytest.param(*one, marks=pytest.mark.thorough) for one in OTHERS)],
)
def test_three_versions_follow_each_other_and_every_value_stays_what_it_was(
    app: App, shape: str, family: str
) -> None:
    topic = f"{app.name}-in"

    def deployed(version: int) -> ss.Topology:
        return pipeline(shape, family, version, topic)

    def processed(version: int) -> ss.RunSummary:
        return ss.run(deployed(version), app.run_settings())

    def read() -> dict[Any, int]:
        with (
            ss.open_snapshot(app.state_dir, app.name, "kept", topology=deployed(2)) as kept,
            kept.everything() as all_,
        ):
            found = {(one.key, one.begins_ms, one.ends_ms): one.value for one in all_}
        assert {type(value) for value in found.values()} == {type(FAMILIES[family][2][2](0))}
        return {place: plain(value) for place, value in found.items()}

    def written() -> dict[int, int]:
        with Runtime(Settings.of(app.run_settings())) as runtime:
            record = require_pass(audit(runtime))
        (store,) = record.stores
        return {one.generation: one.rows for one in store.writers}

    sums: Counter[str] = Counter()
    for version, numbers in enumerate((range(20), range(100, 110), range(200, 205))):
        if version:  # The first ones are there.
            rows = [(f"k{n % 100}", n, START_MS + n) for n in numbers]
            app.produce_raw([(key, b'{"number": %d}' % n, at) for key, n, at in rows])
        for number in numbers:
            key = f"k{number % 100}"
            sums[key] = number + (0 if shape == "history" else sums[key])
        done = processed(version)
        assert (done.records_in, done.restored_records) == (len(numbers), 0)
    mixed, before = written(), read()
    assert set(mixed) == {0, 1, 2}
    found: Counter[str] = Counter()
    for (key, _, ends_ms), value in before.items():
        if shape == "windows" or ends_ms is None:
            found[key] += value
    assert found == sums
    with Runtime(Settings.of(app.run_settings())) as runtime:
        told = migrate(runtime, deployed(2), dry_run=True).migrated
        assert sum(one.rows for one in told) == mixed[0] + mixed[1]
        migrate(runtime, deployed(2), dry_run=False)
    assert written() == {2: sum(mixed.values())}
    assert read() == before
    for folder in (app.state_dir / app.name).glob("0_*"):
        shutil.rmtree(folder)
    assert processed(2).restored_records > 0
    assert read() == before
    assert written() == {2: sum(mixed.values())}
