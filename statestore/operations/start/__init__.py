"""What begins a run: the topics, logs, stores and tables that must be as a topology needs them."""
