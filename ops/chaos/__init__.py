"""`agentrl chaos`: inject faults into a real training run and audit the result."""
