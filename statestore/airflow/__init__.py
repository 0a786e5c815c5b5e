"""statestore in Airflow, of the extra `airflow`: DAGs in one line, and operators.

    from statestore.airflow import micro_batches
    dag = micro_batches("orders")

A factory makes one DAG: `micro_batches` and `when_input` for one application, the others for those
that are named or for all of the applications file, among which the form of the DAG lets people
choose. All take the arguments of `DagOptions`. Jobs and commands run in processes of their own, so
nothing here imports Spark, RocksDB or a Kafka client, and DAG files are quick to parse.
"""

import warnings
from typing import Any

from statestore.airflow.command_operator import StateStoreCommandOperator
from statestore.airflow.dag_applications import Application, load_applications
from statestore.airflow.factories.checkpoint_export import checkpoint_export
from statestore.airflow.factories.consistency_check import consistency_check
from statestore.airflow.factories.crash_drill import crash_drill
from statestore.airflow.factories.micro_batches import micro_batches
from statestore.airflow.factories.partition_change import partition_change
from statestore.airflow.factories.state_relocation import state_relocation
from statestore.airflow.factories.watch import watch
from statestore.airflow.factories.when_input import when_input
from statestore.airflow.hook import StateStoreHook
from statestore.airflow.input_trigger import KafkaLagSensor, KafkaLagTrigger
from statestore.airflow.operator import StateStoreJobOperator
from statestore.airflow.options import DagOptions
from statestore.airflow.watching import StatusOperator

__all__ = [
    "Application",
    "DagOptions",
    "KafkaLagSensor",
    "KafkaLagTrigger",
    "StateStoreCommandOperator",
    "StateStoreHook",
    "StateStoreJobOperator",
    "StatusOperator",
    "checkpoint_export",
    "consistency_check",
    "crash_drill",
    "load_applications",
    "micro_batches",
    "partition_change",
    "state_relocation",
    "watch",
    "when_input",
]

_RENAMED = {"InputSensor": "KafkaLagSensor", "InputTrigger": "KafkaLagTrigger"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        told = f"statestore.airflow.{name} is called {_RENAMED[name]} now"
        warnings.warn(told, DeprecationWarning, stacklevel=2)
        return globals()[_RENAMED[name]]
    raise AttributeError(f"module 'statestore.airflow' has no attribute {name!r}")
