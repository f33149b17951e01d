"""The study of a pretrained language model, with the whole system: `agentrl experiment smollm`."""
