"""Windows of each kind: how aggregates are kept per key and window, and when windows close."""
