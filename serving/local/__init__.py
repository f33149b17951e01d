"""The policy server's engine on transformers, for CPUs and tests."""
