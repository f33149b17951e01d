"""`agentrl chaos`: break a real training at random instants, and audit what came of it."""
