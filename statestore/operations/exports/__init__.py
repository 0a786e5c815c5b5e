"""Exports: state at a target outside the volume, and its way back."""
