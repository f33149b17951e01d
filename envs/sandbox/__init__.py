"""Programs in Docker containers: limits, channels, removal."""
