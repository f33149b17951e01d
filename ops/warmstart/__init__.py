"""`agentrl warmstart`: creates a starting policy by behaviour cloning."""
