"""What administers a store: its schema, roles, size, retention and export."""
