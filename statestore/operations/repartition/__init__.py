"""Changes how many partitions an application has, and keeps its state (docs/adr/0052)."""
