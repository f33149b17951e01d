"""`agentrl experiment turn-credit`: studies which credit of turns learns long episodes faster."""
