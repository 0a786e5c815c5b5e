"""Running an application: its plan, its waves, and what waits for input."""
