"""`agentrl envs` and `agentrl data`: show, play and check tasks."""
