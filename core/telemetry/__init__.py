"""What a process says of itself: metrics and traces."""
