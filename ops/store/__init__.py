"""`agentrl db` and `agentrl sql`: operations on the whole database."""
