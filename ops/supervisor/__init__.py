"""`agentrl up`: runs the processes of a run on one machine and restarts them when they die."""
