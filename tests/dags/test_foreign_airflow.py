"""The DAG files of the sample in another Airflow, with the wheel and no checkout in sight."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.wheel_rig import ROOT, built_wheel, installed

pytestmark = pytest.mark.airflow

LOAD_S = 300
DAGS = sorted(path.stem for path in (ROOT / "dags").glob("*.py"))

LOAD = """
import json, os, sys
from pathlib import Path
import statestore
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(os.environ["AIRFLOW_HOME"] + "/dags")
process = bag.dags["micro_batches"].get_task("process")
print(json.dumps(dict(
    errors=bag.import_errors,
    dags=sorted(bag.dags),
    home=statestore.__file__,
    job=process.application,
    config=str(process.source.config),
    pages=[page["url_prefix"] for page in plugins_manager.get_fastapi_plugins()[0]],
    path=sys.path,
)))
"""


def test_they_load_with_nothing_of_the_repository_on_the_path(tmp_path: Path) -> None:
    programs = installed(built_wheel(tmp_path), tmp_path / "environment", extras=None)
    home = tmp_path / "airflow"
    shutil.copytree(ROOT / "dags", home / "dags", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "statestore.toml", home)
    ours = ("AIRFLOW", "STATESTORE", "PYTHON", "PYSPARK")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    done = subprocess.run(
        [programs / "python", "-c", LOAD],
        cwd=home,
        env={**kept, "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
        timeout=LOAD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    loaded = json.loads(done.stdout.splitlines()[-1])
    assert loaded["errors"] == {}
    assert loaded["dags"] == DAGS
    environment = tmp_path / "environment"
    assert Path(loaded["home"]).is_relative_to(environment)
    assert Path(loaded["job"]).is_relative_to(environment)
    assert Path(loaded["job"]).is_file()
    assert Path(loaded["config"]) == home / "statestore.toml"
    assert "/statestore" in loaded["pages"]
    assert not [entry for entry in loaded["path"] if Path(entry) == ROOT]
