"""Studies about learning, run with the real components in one process, seeded."""
