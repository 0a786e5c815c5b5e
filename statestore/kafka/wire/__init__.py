"""A Kafka client of our own: requests of KIP-890's transactions, records as columns.

Messages are those of the package kafka-python, whose schemas are Kafka's own; `connection.py` sends
and reads them, `cluster.py` knows where partitions and coordinators are, and `codec.py` turns
record batches into columns and back.
"""
