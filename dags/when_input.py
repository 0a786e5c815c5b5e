"""The DAGs `when_input`: one for each application that has a table `[applications.<id>.input]`."""

from statestore.airflow import load_applications, when_input

dags = [when_input(one) for one in load_applications() if one.input is not None]
