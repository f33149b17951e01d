"""Queries about single episodes: search, steps, and the update that trained on each."""
