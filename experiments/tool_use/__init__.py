"""`agentrl experiment tool-use`: studies whether a policy learns to use a tool."""
