"""Relocation: stores moved to where a new topology looks for them."""
