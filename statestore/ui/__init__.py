"""The page of applications: server-rendered, read-only, under `statestore ui` and in Airflow."""
