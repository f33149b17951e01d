"""A run's configuration: its sections, the whole, and the secrets that it names."""
