"""The policy server's engine on vLLM: its process, its HTTP, its weights."""
