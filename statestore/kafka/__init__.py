"""The Kafka edge: the only owner of confluent_kafka; everybody else knows `ports`."""
