"""`agentrl warmstart`: a policy that acts before it is trained, by behaviour cloning."""
