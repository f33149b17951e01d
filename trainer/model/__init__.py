"""The model that learns: its files, its forward pass, what it costs in memory."""
