"""The DAGs `micro_batches`: one for each application of statestore.toml."""

from statestore.airflow import load_applications, micro_batches

dags = [micro_batches(one, pool="statestore_slots") for one in load_applications()]
