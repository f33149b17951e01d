"""`agentrl up`: the processes of a run on one machine, started again when they die."""
