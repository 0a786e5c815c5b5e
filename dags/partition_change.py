"""The DAG `partition_change`: divide state among another number of partitions."""

from statestore.airflow import partition_change

dag = partition_change()
