"""Replays and continues recorded episodes, and recomputes stored updates."""
