"""The provider in an Airflow of somebody else, with the wheel and no checkout in sight."""

import json
import shutil
from pathlib import Path

import pytest

from statestore.testing.local_kafka import LocalKafka
from tests.certificates import Authority
from tests.dags.foreign_rig import ORDERS, PIPELINE, ForeignAirflow, counted, produce
from tests.wheel_rig import ROOT

pytestmark = pytest.mark.airflow

OF_THE_SAMPLE = sorted(path.stem for path in (ROOT / "dags").glob("*.py"))
PASSWORD = "hunter2-is-nowhere"

LOAD = """
import json, sys
import statestore
from airflow import plugins_manager
from airflow.providers_manager import ProvidersManager
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # before Airflow 3.2
    from airflow.models.dagbag import DagBag
bag = DagBag()
tasks = [task for dag in bag.dags.values() for task in dag.tasks]
manager = ProvidersManager()
print(json.dumps(dict(
    errors=bag.import_errors,
    dags=sorted(bag.dags),
    home=statestore.__file__,
    jobs=[task.application for task in tasks if hasattr(task, "application")],
    provider="statestore" in manager.providers,
    links=[name for name in manager.extra_links_class_names if name.startswith("statestore")],
    pages=[page["url_prefix"] for page in plugins_manager.get_fastapi_plugins()[0]]
    if hasattr(plugins_manager, "get_fastapi_plugins") else ["/statestore"],
    path=sys.path,
)))
"""

# One application of a file, one of arguments; both in one folder, and in one file.
SHOP = """
from statestore.airflow import *

dags = [micro_batches("orders"), when_input("orders"), watch("orders"), crash_drill("orders")]
dags += [checkpoint_export("orders"), consistency_check("orders"), state_relocation("orders")]
dags += [partition_change("orders")]
of_payments = dict(
    connection="kafka_prod",
    pipeline="shop:payments",
    settings={"processing.guarantee": "exactly_once", "commit.interval.ms": 200},
)
dags += [
    micro_batches("payments", **of_payments),
    when_input("payments", **of_payments),
    watch("payments", **of_payments),
]
"""
OF_ORDERS = ["checkpoint_export", "consistency_check", "crash_drill", "micro_batches"]
OF_ORDERS += ["partition_change", "state_relocation", "watch", "when_input"]
EXPECTED = [f"orders__{name}" for name in OF_ORDERS]
EXPECTED += [f"payments__{name}" for name in ("micro_batches", "watch", "when_input")]


def files(servers: str) -> dict[str, str]:
    """The files of their folder of DAGs."""
    return {
        "mine.py": SHOP,
        "shop.py": PIPELINE,
        "statestore.toml": ORDERS.format(servers=servers),
        ".airflowignore": "shop.py",
    }


@pytest.mark.thorough
def test_dags_of_two_applications_load_with_nothing_of_the_repository_on_the_path(
    tmp_path: Path,
) -> None:
    airflow = ForeignAirflow.made(tmp_path, files("nowhere:9092"))
    sample = airflow.home / "dags" / "sample"
    shutil.copytree(ROOT / "dags", sample, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "statestore.toml", sample)
    loaded = json.loads(airflow.call("-c", LOAD).splitlines()[-1])
    assert loaded["errors"] == {}
    assert loaded["dags"] == sorted([*EXPECTED, *OF_THE_SAMPLE])
    environment = tmp_path / "environment"
    assert Path(loaded["home"]).is_relative_to(environment)
    assert loaded["jobs"]
    for job in map(Path, loaded["jobs"]):
        assert job.is_relative_to(environment)
        assert job.is_file()
    assert "/statestore" in loaded["pages"]
    assert loaded["provider"]
    assert len(loaded["links"]) == 3
    assert not [entry for entry in loaded["path"] if Path(entry) == ROOT]


# For real.


@pytest.mark.slow
@pytest.mark.kafka
def test_runs_of_two_applications_in_an_airflow_with_the_wheel_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    issued = authority.issue("broker")
    certificate, key = issued.certificate, issued.key
    with LocalKafka(users={"ada": PASSWORD}, tls_certificate=certificate, tls_key=key) as kafka:
        servers = kafka.bootstrap_servers
        for name in ("orders", "payments"):
            for topic in (name, f"{name}-counted"):
                kafka.create_topic(topic, partitions=1)
            produce(servers, name, "aab")
        airflow = ForeignAirflow.made(tmp_path, files(servers))
        connection = {
            "conn_type": "statestore",
            "host": kafka.sasl_servers,
            "login": "ada",
            "password": PASSWORD,
            "extra": {
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(authority.certificate),
                "sasl.mechanism": "SCRAM-SHA-512",
                "state.dir": str(tmp_path / "payments-state"),
            },
        }
        airflow.variables["AIRFLOW_CONN_KAFKA_PROD"] = json.dumps(connection)
        airflow.airflow("db", "migrate")

        for name in ("orders", "payments"):
            airflow.airflow("dags", "test", f"{name}__micro_batches")
            assert counted(servers, f"{name}-counted") == {"a": 2, "b": 1}
            airflow.airflow("dags", "test", f"{name}__watch")
        assert list(airflow.files_with(PASSWORD)) == []
        assert (airflow.home / "dags" / "state" / "orders").is_dir()

        # A wrong password is a mistake of the setting: nothing is tried again.
        connection["password"] = "wrong"
        airflow.variables["AIRFLOW_CONN_KAFKA_PROD"] = json.dumps(connection)
        told = airflow.airflow("dags", "test", "payments__micro_batches", code=1)
        assert "correct sasl.username, sasl.password" in told
        assert "it is not retried" in told


@pytest.mark.slow
def test_the_command_of_airflow_shows_the_provider(tmp_path: Path) -> None:
    airflow = ForeignAirflow.made(tmp_path, {})
    (provider,) = (
        one for one in airflow.json("providers", "list") if one["package_name"] == "statestore"
    )
    assert provider["description"].startswith("Exactly-once")
    (hook,) = (
        one for one in airflow.json("providers", "hooks") if one["connection_type"] == "statestore"
    )
    assert hook["class"] == "statestore.airflow.hook.StateStoreHook"
    links = [one["extra_link_class_name"] for one in airflow.json("providers", "links")]
    assert {name.rpartition(".")[2] for name in links if name.startswith("statestore.")} == {
        "ReportLink",
        "DataDocsLink",
        "SparkUILink",
    }
    assert "StateStoreHook" in str(airflow.json("providers", "get", "statestore", "--full"))
