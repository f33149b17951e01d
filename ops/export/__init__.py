"""`agentrl export --dataset`, `--sft` and `agentrl curate`: episodes for other programs."""
