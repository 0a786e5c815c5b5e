"""Exports: copies of the state at a target outside the volume, and how they are brought back."""
