"""Rows of DataFrames into Kafka topics, exactly once (docs/adr/0043)."""
