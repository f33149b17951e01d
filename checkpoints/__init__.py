"""Checkpoints as files: manifests, whole directories, and their store at a path or a URL."""
