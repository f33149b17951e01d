"""BFCL: several requests of a user in one conversation, each done with function calls."""
