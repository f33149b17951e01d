"""The dispatcher: which groups are admitted, and when."""
