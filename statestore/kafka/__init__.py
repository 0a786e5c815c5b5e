"""The Kafka edge: the only package that imports confluent_kafka; all others use `ports`."""
