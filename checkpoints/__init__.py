"""Checkpoint files: manifests, atomic directories, and their storage at a path or a URL."""
