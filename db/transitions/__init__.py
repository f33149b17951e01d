"""State transitions of a run's rows: fenced compare-and-sets, one file per kind of row."""
