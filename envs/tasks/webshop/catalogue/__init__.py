"""What the shop sells: products by id and by search, in memory or in a folder."""
