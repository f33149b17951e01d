"""`agentrl experiment task-norm`: studies whether normalising advantages per task helps."""
