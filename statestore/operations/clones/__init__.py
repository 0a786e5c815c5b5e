"""Clones: an export opened under another application id, with topics of its own."""
