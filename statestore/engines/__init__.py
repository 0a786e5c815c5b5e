"""The implementations of `ports.Engine`: RocksDB on disk, and sorted dicts in memory."""
