"""Runs as a whole: begun, listed, paused, forked, exported, deleted."""
