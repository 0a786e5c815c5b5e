"""What the DAG files share; imports Airflow and the standard library only."""
