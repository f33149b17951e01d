"""The `agentrl` command: parses arguments; each command imports what it needs when it runs."""
