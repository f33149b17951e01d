"""Other people's environments as tasks: an adapter for each library (`tasks.NAME.source`)."""
