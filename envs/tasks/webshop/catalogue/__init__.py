"""What the shop sells: products, their search index, and measurements of a whole catalogue."""
