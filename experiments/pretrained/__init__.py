"""`agentrl experiment smollm`: the study of a pretrained language model with the whole system."""
