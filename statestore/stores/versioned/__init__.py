"""Versioned stores: their rows, what is written, what is searched, the owner and the readers."""
