"""The commands behind `statestore`, a module per group; cli.py adds them together."""
