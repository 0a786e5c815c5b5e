"""Spark entry points, one verb each, and the sample pipelines."""
