"""Joins of streams and tables: within a task, by foreign keys, and with rows of all partitions."""
