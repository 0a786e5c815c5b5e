"""jobs/export.py: the stores of a real run, uploaded by Spark tasks."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import statestore as ss
from statestore.layout.activity_files import NoProgress
from statestore.operations.exports.catalog import Exports
from statestore.runtime import Runtime
from statestore.testing.local_kafka import LocalKafka
from tests.builders import ROOT
from tests.kafka import run_pipelines
from tests.kafka.run_pipelines import PREFIX_VARIABLE
from tests.kafka.run_rig import App, counted

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def exported(app: App, target: str) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "jobs/export.py", "--json", f"--target={target}"]
    command += [f"--application-id={app.name}", f"--state-dir={app.state_dir}"]
    command.append(f"--bootstrap-servers={app.kafka.bootstrap_servers}")
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return done.returncode, json.loads(line), done.stderr


def test_each_stream_task_is_uploaded_by_a_spark_task_and_an_error_keeps_its_class(
    kafka: LocalKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, "job")
    app = App(kafka, "job", tmp_path / "state").create_topics()
    app.produce(range(40))
    ss.run(run_pipelines.counts(), app.run_settings())
    target = str(tmp_path / "exports")
    code, said, err = exported(app, target)
    assert code == 0, err[-4000:]
    assert (said["stores"], said["error"]) == (2, None)
    code, again, err = exported(app, target)
    assert (code, again["files_uploaded"]) == (0, 0), err[-4000:]
    settings = {"statestore.export.target": target}
    known = ss.Settings.from_mapping(app.run_settings(**settings))
    exports = Exports.of(Runtime(known))
    assert exports.ids() == [said["export_id"], again["export_id"]]
    exports.verify(exports.read(), NoProgress())
    with (
        ss.open_snapshot(
            app.state_dir, app.name, "counts", export="latest", settings=settings
        ) as store,
        store.all() as rows,
    ):
        assert dict(rows) == counted(range(40))
    # A store whose files are gone: what the Spark task raised is what the command says.
    (folder,) = (app.state_dir / app.name).glob("1_0/rocksdb/counts")
    (folder / "CURRENT").unlink()
    code, failed, err = exported(app, target)
    assert (code, failed["error"]["class"]) == (10, "TaskCorrupted"), err[-4000:]
    assert len(exports.ids()) == 2
