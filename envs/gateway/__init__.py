"""Unmodified agent programs as episodes: a gateway that speaks the OpenAI chat API."""
