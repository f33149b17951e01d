"""Training engines: torch in one process, DeepSpeed over several ranks."""
