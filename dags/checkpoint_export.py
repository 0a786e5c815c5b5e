"""The DAG `checkpoint_export`: durable copies of the stores, verified; old copies go."""

from statestore.airflow import checkpoint_export

dag = checkpoint_export()
