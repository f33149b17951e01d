"""The registry of checkpoints, tracks, leases and policy servers."""
