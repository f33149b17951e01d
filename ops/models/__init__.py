"""Imports causal language models into directories that trainer and policy servers can load."""
