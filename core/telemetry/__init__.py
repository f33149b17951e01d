"""Metrics and traces of a process."""
