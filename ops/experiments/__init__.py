"""Experiments: questions about learning that the real parts answer, in one process, seeded."""
