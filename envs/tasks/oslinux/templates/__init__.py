"""Templates of generated problems: the worlds of files, questions about them, changes to them."""
