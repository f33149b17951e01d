"""The policy server's engine for models of other people's APIs."""
