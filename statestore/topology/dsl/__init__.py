"""What a pipeline is written with: the builder, streams, tables and what lies between them."""
