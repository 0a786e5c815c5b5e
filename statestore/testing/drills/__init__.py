"""Drills: scratch applications killed on purpose, and what came of it."""
