"""Composes the other packages: processes, supervision, evaluation, quickstart."""
