"""The database of an episode: an SQLite, here or in a sandbox, or a MySQL server."""
