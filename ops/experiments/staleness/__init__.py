"""`agentrl experiment staleness`: what running ahead and re-loading rarely cost and bring."""
