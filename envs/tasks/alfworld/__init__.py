"""ALFWorld: household errands in a text game."""
