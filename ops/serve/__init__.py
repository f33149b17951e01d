"""`agentrl serve`: a checkpoint behind OpenAI's Chat Completions, for other people's programs."""
