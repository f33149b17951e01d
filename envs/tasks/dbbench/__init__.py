"""DB: answer a question about a table, or change it, through SQL."""
