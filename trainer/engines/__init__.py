"""What computes an update: torch in one process, DeepSpeed over ranks."""
