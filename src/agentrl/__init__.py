"""AgentRL. Each link beside this file leads to a folder at the top of the repository.

Users extend it with tasks (`agentrl.envs.contract`) and start it with the command `agentrl`.
"""
