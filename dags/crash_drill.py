"""The DAG `crash_drill`: kill runs on purpose, and show that nothing is lost or doubled."""

from statestore.airflow import crash_drill

dag = crash_drill(pool="statestore_slots")
