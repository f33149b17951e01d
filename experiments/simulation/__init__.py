"""Trainings in one process on a simulated system: the same seed repeats one exactly."""
