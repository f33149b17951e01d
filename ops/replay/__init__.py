"""Recorded episodes and updates, afterwards: replayed, continued, recomputed."""
