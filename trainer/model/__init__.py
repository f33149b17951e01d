"""The trained model: its files, its forward pass, its memory use."""
