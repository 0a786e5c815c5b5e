"""The commands of `statestore`, one module for each group; cli.py adds them together."""
