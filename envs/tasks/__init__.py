"""The tasks, one folder each, and their common code."""
