"""Programs in Docker containers: limits, channels, and what removes them."""
