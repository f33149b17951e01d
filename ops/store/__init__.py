"""`agentrl db` and `agentrl sql`: a store as a whole."""
