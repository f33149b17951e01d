"""`agentrl envs` and `agentrl data`: tasks looked at, played and checked."""
