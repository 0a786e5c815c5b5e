"""The DAGs, a module for each: a function that makes the DAG of one applications file."""
