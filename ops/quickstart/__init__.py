"""`agentrl quickstart`: the whole pipeline on this machine."""
