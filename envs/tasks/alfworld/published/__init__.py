"""The published games: their archive, the interpreter of their rules, and their experts."""
