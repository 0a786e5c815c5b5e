"""The DAG `watch`: fail where an application is behind, not run or not audited."""

from statestore.airflow import watch

dag = watch()
