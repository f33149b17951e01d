"""`agentrl experiment task-norm`: does normalising advantages in each task help?"""
