"""Clones: an export under another application id, with topics of its own."""
