"""The state dir: its folders and files, their owners, and how files are written atomically."""
