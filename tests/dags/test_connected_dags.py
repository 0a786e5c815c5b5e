"""DAGs whose connection to Spark names a server of Spark Connect, in Airflow."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Producer

from statestore.testing.local_kafka import LocalKafka
from tests.dags.project_rig import Project
from tests.spark.cluster_rig import CHECKOUT, connect_server

pytestmark = [pytest.mark.airflow, pytest.mark.kafka, pytest.mark.spark, pytest.mark.thorough]

COUNTED = """
import statestore as ss

def counting():
    b = ss.StreamsBuilder()
    b.stream("connected-in").group_by_key().count("counts")
    return b.build()
"""
APPLICATIONS = """
[applications.connected]
pipeline = "counted:counting"
bootstrap_servers = "{servers}"
state_dir = "{folder}/state"
processing_guarantee = "exactly_once"
"""


def test_a_micro_batch_and_its_audit_are_clients_of_the_server(
    kafka: LocalKafka, tmp_path: Path
) -> None:
    kafka.create_topic("connected-in", partitions=7)
    texts = APPLICATIONS.format(servers=kafka.bootstrap_servers, folder=tmp_path)
    project = Project.copied(tmp_path, texts)
    (tmp_path / "counted.py").write_text(COUNTED)
    server = tmp_path / "server"
    server.mkdir()
    path = {"PYTHONPATH": f"{tmp_path}:{CHECKOUT['PYTHONPATH']}"}
    with connect_server(server, {**CHECKOUT, **path}) as (_, address):
        host, _, port = address.removeprefix("sc://").partition(":")
        connection = {"conn_type": "spark_connect", "host": host, "port": int(port)}
        variables = {"AIRFLOW_CONN_SPARK_DEFAULT": json.dumps(connection)}
        project = replace(project, environment={**project.environment, **variables})
        for _ in range(2):
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
            for number in range(30):
                producer.produce("connected-in", b"v", str(number), timestamp=1000 + number)
            producer.flush()
            done = project.succeed("connected__micro_batches")
            assert "as a client of Spark Connect" in done.log
            assert done.xcoms["process", "summary"]["records_in"] == 30
        audited = project.succeed("consistency_check", applications=["connected"])
        assert "as a client of Spark Connect" in audited.log
