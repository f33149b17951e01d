"""Administration of the database: schema, roles, sizes, retention, export."""
