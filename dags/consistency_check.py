"""The DAG `consistency_check`: are all stores what their changelogs make of them?"""

from statestore.airflow import consistency_check

dag = consistency_check(pool="statestore_slots")
