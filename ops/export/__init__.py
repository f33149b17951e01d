"""`agentrl export --dataset` and `--sft`: a run's episodes in formats that other programs read."""
