"""Crash drills: runs of scratch applications are killed, and what they leave is audited."""
