"""What several benchmarks share; none of these files measures anything alone."""
