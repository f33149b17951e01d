"""Chooses the policy of the next step, and sends requests to it."""
