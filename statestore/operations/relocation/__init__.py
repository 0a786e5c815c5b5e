"""Relocation: moves stores to where a changed topology looks for them."""
