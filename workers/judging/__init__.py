"""Judges of finished episodes: models and users' functions; not the rewards of environments."""
