"""A user's own code as a node, with stores and timers."""
