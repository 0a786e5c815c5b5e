"""What lies where in the state dir, whose it is, and how it gets there in one piece."""
