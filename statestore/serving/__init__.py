"""Serving: copies of stores that follow their owners, and what can be asked of them."""
