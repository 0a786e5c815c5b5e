"""Audits: stores against their changelogs, by readers of their own."""
