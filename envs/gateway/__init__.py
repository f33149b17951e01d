"""Runs unmodified agent programs as episodes: a gateway with the OpenAI chat API."""
