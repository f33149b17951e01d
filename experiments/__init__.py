"""Studies that answer a question about learning, by `agentrl experiment`; not part of the wheel."""
