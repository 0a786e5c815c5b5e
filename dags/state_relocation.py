"""The DAG `state_relocation`: move state to where a new topology looks for it."""

from statestore.airflow import state_relocation

dag = state_relocation()
