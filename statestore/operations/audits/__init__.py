"""Audits: compare stores with their changelogs, with readers of their own."""
