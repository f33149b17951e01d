"""Bring any causal language model into a directory that trainer and policy servers load."""
