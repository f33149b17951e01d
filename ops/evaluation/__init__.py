"""Evaluation of policies on held-out items, as a command and as a process of a run."""
