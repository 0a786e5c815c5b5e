"""The kinds of stores: an object for each, and the registry that finds it (docs/adr/0039)."""
