"""`agentrl config`: the effective configuration, its keys, the model it names."""
