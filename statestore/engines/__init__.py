"""Databases behind `ports.Engine`: RocksDB on disk, and memory."""
