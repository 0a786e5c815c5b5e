"""Audits, which compare stores with their changelogs, independently of the restore path."""
