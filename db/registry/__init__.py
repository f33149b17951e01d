"""Which checkpoints, tracks, leases and policy servers there are."""
