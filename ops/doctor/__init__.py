"""`agentrl doctor`: what is installed and reachable, and whether a run fits this machine."""
