"""What a trainer resumes from: its snapshots, and an update that it had to leave uncommitted."""
