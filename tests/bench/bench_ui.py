"""The page of applications: the time to its first byte, with 1 000 stores and 100 applications.

One application has all the stores, over 100 stream tasks; the others have one each. No broker is
asked. `first` is the first request for a page, which waits up to a second for the first look;
`again` are the ones after it, which show the last look. `look` is a look in the background.
"""

import json
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import click
from starlette.testclient import TestClient

import statestore as ss
from statestore.layout.folders import StateLayout
from statestore.model.ids import TaskId, TopicPartition
from statestore.runtime import Runtime, SystemClock
from statestore.tasks.history import WorkHistory
from statestore.tasks.plan import Standing, TaskReport
from statestore.ui.polling import Poller, applications_of, details_of, look_at
from statestore.ui.site import application
from tests.bench.harness import Bench, scratch
from tests.builders import ManualClock

TASKS = 100
SAMPLES = 360


def fill(state_dir: Path, name: str, stores: int, tasks: int) -> None:
    """An application with that many stores of some rows, over its stream tasks."""
    layout, each = StateLayout(state_dir, name), stores // tasks
    specs = [ss.persistent_key_value_store(f"store-{number:03}") for number in range(each)]
    for partition in range(tasks):
        folder = layout.task_dir(TaskId(0, partition))
        for spec in specs:
            with ss.open_store(spec, folder / "rocksdb") as store:
                store.put(b"key", b"value")
                store.commit({TopicPartition(f"{name}-{spec.name}-changelog", partition): 1})
        clock = ManualClock(SystemClock().now_ms() - SAMPLES * 60_000)
        history, done = WorkHistory(folder, clock), TaskReport(f"0_{partition}")
        for _ in range(SAMPLES):
            history.write(done, Standing(f"0_{partition}", lag_records=1))
            clock.advance(60_000)
            done.records_in += 1000
    builder = ss.StreamsBuilder()
    builder.stream("in").process(lambda _: None, *specs, name="all")  # type: ignore[arg-type,return-value]
    layout.topology_file.write_text(json.dumps(builder.build().deployed()))


def timed(call: Callable[[], object]) -> float:
    """The milliseconds of a call."""
    started = perf_counter()
    call()
    return 1000 * (perf_counter() - started)


@click.command()
@click.option("--stores", default=1000, show_default=True)
@click.option("--applications", default=100, show_default=True)
@click.option("--repeats", default=20, show_default=True)
def main(stores: int, applications: int, repeats: int) -> None:
    """Write the folders, then ask for pages."""
    bench = Bench("ui")
    with scratch() as folder:
        names = ["large", *(f"small-{number:03}" for number in range(applications - 1))]
        for name in names:
            fill(folder / "state", name, *((stores, TASKS) if name == "large" else (1, 1)))
        config = folder / "statestore.toml"
        config.write_text("".join(f'[applications.{n}]\nstate_dir = "state"\n' for n in names))
        with Runtime({"application.id": "large", "state.dir": str(folder / "state")}) as runtime:
            bench.add("look, for the overview", "ms", [timed(lambda: look_at(runtime))])
            bench.add("look, with all details", "ms", [timed(lambda: details_of(runtime))])
        lookout = Poller(applications_of(config, folder), SystemClock())
        client = TestClient(application(lookout, frozenset({"testserver"})))
        for what, path in (
            (f"overview of {applications} applications", "/"),
            (f"application of {stores} stores", "/applications/large"),
        ):
            bench.add(f"{what}, first", "ms", [timed(lambda path=path: client.get(path))])  # type: ignore[misc]
            again = [timed(lambda path=path: client.get(path)) for _ in range(repeats)]  # type: ignore[misc]
            bench.add(f"{what}, again", "ms", again)
        key = "/applications/large/stores/store-000?key=key"
        bench.add("a key of a store in 100 partitions", "ms", [timed(lambda: client.get(key))])
        lookout.close()
    bench.finish()


if __name__ == "__main__":
    main()
