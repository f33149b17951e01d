"""Every task in a folder of its own, and what all of them share."""
