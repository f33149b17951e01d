"""Configuration, types, errors, logging. No network, no database."""
