"""`agentrl experiment staleness`: studies what a long queue and rare policy reloads cost."""
