"""Why an old export is refused: the broker's cleaner has taken the deletes that came after it."""

import shutil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import statestore as ss
from statestore.errors import ExportTooOld
from statestore.operations.exports.catalog import Exports
from statestore.operations.exports.create import create_export
from statestore.operations.exports.restore_export import Choice, LogState, Restore, restore_export
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.builders import eventually
from tests.kafka import version_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import DEADLINE_S, App

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
KEPT = {f"k{n}" for n in range(5, 10)}


@pytest.fixture
def app(kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> App:
    monkeypatch.setenv(PREFIX_VARIABLE, "old")
    app = App(kafka, "old", tmp_path / "state")
    return app.create_topics(partitions=1)


def settings_of(app: App) -> ss.Settings:
    target = {"statestore.export.target": str(app.state_dir.parent / "exports")}
    return ss.Settings.from_mapping(app.run_settings(**target))


def put(app: App, keys: set[str], value: str | None) -> None:
    """Records, and a run that stores what they say."""
    producer = Producer({"bootstrap.servers": app.kafka.bootstrap_servers})
    for key in sorted(keys):
        producer.produce("old-in", key=key, value=value)
    assert producer.flush(DEADLINE_S) == 0
    ss.run(version_pipelines.forgetting(), app.run_settings())


def keys_stored(app: App) -> set[str]:
    with ss.open_snapshot(app.state_dir, app.name, "rows") as store, store.all() as rows:
        return {key for key, _ in rows}


def deletes_logged(app: App) -> int:
    """How many tombstones the changelog holds, read with a plain client."""
    client = Consumer(
        {
            "bootstrap.servers": app.kafka.bootstrap_servers,
            "group.id": "deletes",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    client.assign([TopicPartition("old-rows-changelog", 0, 0)])
    found = 0
    while True:
        for message in client.consume(1000, 1.0):
            if message.error():
                client.close()
                return found
            found += message.value() is None


def forget_deletes(app: App) -> None:
    """Until the cleaner has taken them; it leaves the newest segment alone, so let there be one."""
    number = 0

    def forgotten() -> bool:
        nonlocal number
        number += 1
        put(app, {"later"}, str(number))
        return deletes_logged(app) == 0

    eventually(forgotten, "the cleaner takes the deletes", deadline_s=2 * DEADLINE_S)


def test_without_the_refusal_deleted_keys_would_come_back_and_full_brings_none(app: App) -> None:
    settings = settings_of(app)
    put(app, KEPT | {f"k{n}" for n in range(5)}, "1")
    create_export(Runtime(settings))
    put(app, {f"k{n}" for n in range(5)}, None)
    assert keys_stored(app) == KEPT
    assert deletes_logged(app) == 5
    forget_deletes(app)
    shutil.rmtree(app.state_dir)
    with pytest.raises(ExportTooOld, match=r"could come back: .*--full"):
        restore_export(Runtime(settings))
    assert not app.state_dir.exists(), "a refusal leaves nothing behind"
    placed_in_spite_of_it(app)
    ss.run(version_pipelines.forgetting(), app.run_settings())
    assert keys_stored(app) == KEPT | {"later"} | {f"k{n}" for n in range(5)}, "the dead live"
    report = restore_export(Runtime(settings), choice=Choice(replace=True, full=True))
    assert (report.placed, len(report.set_aside)) == ([], 1)
    done = ss.run(version_pipelines.forgetting(), app.run_settings())
    assert done.restored_records > 0
    assert keys_stored(app) == KEPT | {"later"}


def placed_in_spite_of_it(app: App) -> None:
    """What `restore_export` does, for a log said to keep deletes for ever."""
    with Runtime(settings_of(app)) as runtime:
        manifest = Exports.of(runtime).read()
        Restore(runtime, manifest, lambda tps: LogState(runtime.cluster.bounds(tps), {})).apply()
